#!/usr/bin/env bash
# From a clean clone to a trained, evaluated, talking model: scripts/quickstart.sh
# Installs what is missing, builds, trains a tokenizer and a small GPT on tiny Shakespeare (data/tinyshakespeare.txt), measures
# held-out perplexity and prints a sample. What is already done is not done again.
set -euo pipefail
cd "$(dirname "$0")/.."

run=runs/quickstart
program=build/release/megatron_cpp
step() { printf '\n== %s\n' "$*"; }

step "packages and build"
scripts/install_dependencies.sh
scripts/build.sh release megatron_cpp

step "text: the first 90 % is trained on, the last 10 % is held out"
mkdir -p "$run/data"
bytes=$(wc -c <data/tinyshakespeare.txt)
head -c $((bytes * 9 / 10)) data/tinyshakespeare.txt >"$run/data/train.txt"
tail -c +$((bytes * 9 / 10 + 1)) data/tinyshakespeare.txt >"$run/data/valid.txt"
wc -c "$run"/data/*.txt

step "tokenizer"
[ -f "$run/tokenizer.model" ] ||
  "$program" tokenizer train --input="$run/data/train.txt" --output="$run/tokenizer.model" --vocab_size=1024 --model_type=unigram

step "token files"
for part in train valid; do
  [ -f "$run/data/${part}_text_document.idx" ] ||
    "$program" preprocess --input="$run/data/$part.txt" --output_prefix="$run/data/$part" --tokenizer_model="$run/tokenizer.model"
done

step "training"
"$program" pretrain configs/quickstart.toml

step "held-out perplexity"
"$program" evaluate --load="$run/checkpoints" --text="$run/data/valid.txt"

step "a sample"
"$program" generate --load="$run/checkpoints" --prompt=$'ROMEO:\n' --max_new_tokens=200

cat <<END

== what next
Talk to it:          $program generate --load=$run/checkpoints --prompt=\$'JULIET:\n' --temperature=0.7 --seed=7
Train longer:        $program pretrain configs/quickstart.toml --training.train_iters=3000 --checkpoint.save=runs/longer
Your own text:       see "Train on your own text" in README.md
All settings:        $program config --help
END
