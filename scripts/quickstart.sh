#!/usr/bin/env bash
# Trains a small GPT on tiny Shakespeare (data/tinyshakespeare.txt), starting from a clean clone.
#
#   scripts/quickstart.sh
#
# Installs missing packages, builds, trains a tokenizer and the model, measures held-out perplexity and prints a sample.
# Steps that are already done are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

run=runs/quickstart
program=build/release/megatron_cpp
step() { printf '\n== %s\n' "$*"; }

step "install packages and build"
scripts/install_dependencies.sh
scripts/build.sh release megatron_cpp

step "split the text: the first 90 % for training, the last 10 % held out"
mkdir -p "$run/data"
bytes=$(wc -c <data/tinyshakespeare.txt)
head -c $((bytes * 9 / 10)) data/tinyshakespeare.txt >"$run/data/train.txt"
tail -c +$((bytes * 9 / 10 + 1)) data/tinyshakespeare.txt >"$run/data/valid.txt"
wc -c "$run"/data/*.txt

step "train the tokenizer"
[ -f "$run/tokenizer.model" ] ||
  "$program" tokenizer train --input="$run/data/train.txt" --output="$run/tokenizer.model" --vocab_size=1024 --model_type=unigram

step "tokenize"
for part in train valid; do
  [ -f "$run/data/${part}_text_document.idx" ] ||
    "$program" preprocess --input="$run/data/$part.txt" --output_prefix="$run/data/$part" --tokenizer_model="$run/tokenizer.model"
done

step "train"
"$program" pretrain configs/quickstart.toml --training.eval_interval=150 --logging.sample_prompt=ROMEO: --logging.sample_tokens=60

step "measure held-out perplexity"
"$program" evaluate --load="$run/checkpoints" --text="$run/data/valid.txt"

step "generate a sample"
"$program" generate --load="$run/checkpoints" --prompt=$'ROMEO:\n' --max_new_tokens=200

cat <<END

== next steps
Generate text:       $program generate --load=$run/checkpoints --prompt=\$'JULIET:\n' --temperature=0.7 --seed=7
Train longer:        $program pretrain configs/quickstart.toml --training.train_iters=3000 --checkpoint.save=runs/longer
Your own text:       see "Train on your own text" in README.md
All settings:        $program config --help
END
