# Text of the quick start for benchmarks of training quality; to be sourced with $program set.
# shellcheck shell=bash disable=SC2154 # program is set by the caller

# prepare_text <folder>: writes train and valid as text and as token files, and tokenizer.model, as
# scripts/quickstart.sh does. The first 90 % of the text are for training.
prepare_text() {
  local folder=$1 part bytes
  bytes=$(wc -c <data/tinyshakespeare.txt)
  head -c $((bytes * 9 / 10)) data/tinyshakespeare.txt >"$folder/train.txt"
  tail -c +$((bytes * 9 / 10 + 1)) data/tinyshakespeare.txt >"$folder/valid.txt"
  "$program" tokenizer train --input="$folder/train.txt" --output="$folder/tokenizer.model" --vocab_size=1024 --model_type=unigram >/dev/null
  for part in train valid; do
    "$program" preprocess --input="$folder/$part.txt" --output_prefix="$folder/$part" --tokenizer_model="$folder/tokenizer.model" >/dev/null
  done
}
