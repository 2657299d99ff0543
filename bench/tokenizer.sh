#!/usr/bin/env bash
# Compares `tokenizer train` with spm_train of the same sentencepiece library (Debian package sentencepiece), and
# `preprocess` with libraries that encode the same paragraphs in memory: `tokenizers` for each of --rules, sentencepiece
# for each of --models, if the Python of HUGGINGFACE_PYTHON has them. Both sides use the same text, settings and
# threads. Runs alternate.
#
#   bench/tokenizer.sh [--runs=3] [--vocab_size=8192] [--threads=2] [--kinds="bpe unigram"] [--sizes="2000000 100000000"]
#                      [--rules="gpt2 llama3 qwen2"] [--models="bpe unigram"] [--encode_size=50000000] [text ...]
#
#   text    repeated until there are enough bytes (default data/tinyshakespeare.txt). Large sizes measure reading and counting, small
#           ones the learning of pieces. spm_train reads lines and learns no newlines
#
# Prints JSON lines on standard output: the environment, then medians of CPU and wall-clock seconds per size and kind of
# model. On a host with other load, compare CPU seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh

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
    --*) echo "unknown option $argument; see the header of $0" >&2 && exit 2 ;;
    *) texts+=("$argument") ;;
  esac
done
[ ${#texts[@]} -gt 0 ] || texts=(data/tinyshakespeare.txt)
[ -z "$kinds" ] || command -v spm_train >/dev/null || { echo "spm_train is missing; install the Debian package sentencepiece" >&2 && exit 2; }
[ -x "${MEGATRON_CPP:=build/release/megatron_cpp}" ] || scripts/build.sh release megatron_cpp >/dev/null

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# timed <file> <command ...>: appends wall-clock and CPU seconds of the command to the file.
timed() {
  local times=$1 TIMEFORMAT='%R %U %S'
  shift
  { time "$@" >"$folder/log" 2>&1; } 2>"$folder/time" || { cat "$folder/log" >&2 && exit 1; }
  awk '{ print $1, $2 + $3 }' "$folder/time" >>"$times"
}
median_of_column() { cut -d' ' -f"$2" "$1" | median; }

# compare_training <kind>: trains on $folder/text.
compare_training() {
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

# make_text <bytes>: writes $folder/text.
make_text() {
  while cat "${texts[@]}"; do :; done 2>/dev/null | head -c "$1" | iconv -c -f utf-8 -t utf-8 >"$folder/text" || true
}

# compare_encoding <library> <kind> <model file> [option of tokenizer train ...]: encodes $folder/text with a tokenizer
# trained on its beginning.
compare_encoding() {
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
has_library() { "$python" -c "import $1" 2>/dev/null || { echo "encoding is not measured: $python has no $1" >&2 && return 1; }; }

environment_json "\"spm_train\": \"$(spm_train --version 2>/dev/null | tr -d '\n')\", \"texts\": \"${texts[*]##*/}\""
for size in $sizes; do
  make_text "$size"
  for kind in $kinds; do compare_training "$kind"; done
done
make_text "$encode_size"
if [ -n "$rules" ] && has_library tokenizers; then
  for kind in $rules; do compare_encoding tokenizers "$kind" tokenizer.json --model_type=bpe-bytes --pre_tokenizer="$kind"; done
fi
if [ -n "$models" ] && has_library sentencepiece; then
  for kind in $models; do compare_encoding sentencepiece "$kind" tokenizer.model --model_type="$kind"; done
fi
