#!/usr/bin/env bash
# Times tokenizer train against spm_train of the same sentencepiece library (Debian package sentencepiece), in turn, on the same
# text with the same settings and threads. JSON lines on standard output: the machine, then one for each size and kind of model
# with medians of seconds of processor time and of the clock.
#   bench/tokenizer.sh [--runs=3] [--vocab_size=8192] [--threads=2] [--kinds="bpe unigram"] [--sizes="2000000 100000000"]
#                      [--rules="gpt2 llama3 qwen2"] [--models="bpe unigram"] [--encode_size=50000000] [text ...]
# The texts (default data/tinyshakespeare.txt) are taken again and again until there are so many bytes, so that a large size says
# how fast text is read and counted, a small one how fast pieces are learnt. spm_train reads line by line and learns no newlines.
# Then preprocess, which also reads and writes, against libraries encoding the same paragraphs from memory with the same tokenizer and
# threads: `tokenizers` for each of the rules, sentencepiece for each of the models, where the Python that HUGGINGFACE_PYTHON names has them.
# On a machine that others use too, processor time is the one to look at.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=bench/lib/machine.sh
source bench/lib/machine.sh

runs=3 vocab_size=8192 threads=2 kinds="bpe unigram" sizes="2000000 100000000"
rules="gpt2 llama3 qwen2" models="bpe unigram" encode_size=50000000 python=${HUGGINGFACE_PYTHON:-python3}
texts=()
for argument in "$@"; do
  case $argument in
    --runs=*) runs=${argument#*=} ;;
    --vocab_size=*) vocab_size=${argument#*=} ;;
    --threads=*) threads=${argument#*=} ;;
    --kinds=*) kinds=${argument#*=} ;;
    --sizes=*) sizes=${argument#*=} ;;
    --rules=*) rules=${argument#*=} ;;
    --models=*) models=${argument#*=} ;;
    --encode_size=*) encode_size=${argument#*=} ;;
    --*) echo "unknown option $argument; see the head of $0" >&2 && exit 2 ;;
    *) texts+=("$argument") ;;
  esac
done
[ ${#texts[@]} -gt 0 ] || texts=(data/tinyshakespeare.txt)
[ -z "$kinds" ] || command -v spm_train >/dev/null || { echo "spm_train is missing; install the Debian package sentencepiece" >&2 && exit 2; }
[ -x "${MEGATRON_CPP:=build/release/megatron_cpp}" ] || scripts/build.sh release megatron_cpp >/dev/null

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# timed <file> <command ...>: appends "clock processor" to the file.
timed() {
  local times=$1 TIMEFORMAT='%R %U %S'
  shift
  { time "$@" >"$folder/log" 2>&1; } 2>"$folder/time" || { cat "$folder/log" >&2 && exit 1; }
  awk '{ print $1, $2 + $3 }' "$folder/time" >>"$times"
}
median_of_column() { cut -d' ' -f"$2" "$1" | median; }

# race <kind>: of $folder/text.
race() {
  local kind=$1 run
  rm -f "$folder"/ours "$folder"/theirs
  for ((run = 0; run < runs; ++run)); do
    timed "$folder/ours" "$MEGATRON_CPP" tokenizer train --input="$folder/text" --output="$folder/ours.model" \
      --vocab_size="$vocab_size" --model_type="$kind" --num_threads="$threads"
    timed "$folder/theirs" spm_train --input="$folder/text" --model_prefix="$folder/theirs" --vocab_size="$vocab_size" \
      --model_type="$kind" --num_threads="$threads" --byte_fallback --character_coverage=0.9995 --max_sentence_length=1000000 \
      --normalization_rule_name=identity --remove_extra_whitespaces=false --add_dummy_prefix=false \
      --allow_whitespace_only_pieces --minloglevel=2
  done
  printf '{"bytes": %s, "model_type": "%s", "vocab_size": %s, "threads": %s, "runs": %s, ' "$(stat -c %s "$folder/text")" "$kind" \
    "$vocab_size" "$threads" "$runs"
  printf '"cpu_seconds": %s, "spm_cpu_seconds": %s, "seconds": %s, "spm_seconds": %s}\n' "$(median_of_column "$folder/ours" 2)" \
    "$(median_of_column "$folder/theirs" 2)" "$(median_of_column "$folder/ours" 1)" "$(median_of_column "$folder/theirs" 1)"
}

# make_text <bytes>: $folder/text.
make_text() {
  while cat "${texts[@]}"; do :; done 2>/dev/null | head -c "$1" | iconv -c -f utf-8 -t utf-8 >"$folder/text" || true
}

# race_encode <library> <kind> <file of the model> [option of tokenizer train ...]: of $folder/text, with a tokenizer trained on its beginning.
race_encode() {
  local library=$1 kind=$2 model=$folder/$3 run
  shift 3
  rm -f "$folder"/ours "$folder"/theirs
  head -c 2000000 "$folder/text" | iconv -c -f utf-8 -t utf-8 >"$folder/part"
  "$MEGATRON_CPP" tokenizer train --input="$folder/part" --output="$model" --vocab_size="$vocab_size" "$@" >"$folder/log"
  for ((run = 0; run < runs; ++run)); do
    timed "$folder/ours" "$MEGATRON_CPP" preprocess "$folder/text" --output_prefix="$folder/out" --text_document=paragraph \
      --tokenizer_model="$model" --workers="$threads"
    "$python" bench/lib/encode_documents.py "$model" "$folder/text" "$threads" >>"$folder/theirs"
  done
  printf '{"bytes": %s, "%s": "%s", "vocab_size": %s, "threads": %s, "runs": %s, ' "$(stat -c %s "$folder/text")" \
    "$([ "$library" = tokenizers ] && echo rules || echo encoded_by)" "$kind" "$vocab_size" "$threads" "$runs"
  printf '"cpu_seconds": %s, "%s_cpu_seconds": %s, "seconds": %s, "%s_seconds": %s}\n' \
    "$(median_of_column "$folder/ours" 2)" "$library" "$(median_of_column "$folder/theirs" 2)" "$(median_of_column "$folder/ours" 1)" "$library" "$(median_of_column "$folder/theirs" 1)"
}
has_library() { "$python" -c "import $1" 2>/dev/null || { echo "encoding is not timed: $python has no $1" >&2 && return 1; }; }

machine_json "\"spm_train\": \"$(spm_train --version 2>/dev/null | tr -d '\n')\", \"texts\": \"${texts[*]##*/}\""
for size in $sizes; do
  make_text "$size"
  for kind in $kinds; do race "$kind"; done
done
make_text "$encode_size"
if [ -n "$rules" ] && has_library tokenizers; then
  for kind in $rules; do race_encode tokenizers "$kind" tokenizer.json --model_type=bpe-bytes --pre_tokenizer="$kind"; done
fi
if [ -n "$models" ] && has_library sentencepiece; then
  for kind in $models; do race_encode sentencepiece "$kind" tokenizer.model --model_type="$kind"; done
fi
