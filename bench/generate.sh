#!/usr/bin/env bash
# Measures the throughput of `generate` with different batch sizes and, with --python, that of generate() of
# transformers with the same weights. Runs alternate, and the texts must not depend on the batch size.
#
#   bench/generate.sh [--rounds=N] [--batches="1 8 32"] [--prompts=N] [--max_new_tokens=N] [--precision=fp32|bf16] [--python=PATH]
#     [--program=PATH] [--configuration=FILE] [option of megatron_cpp generate ...]
#
#   --python=PATH  a Python with torch and transformers
#
# Prints JSON lines on standard output, without the time of start-up and loading, and medians on standard error.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=3
batches="1 8 32"
prompts=32
max_new_tokens=64
precision=fp32
python=
program=
configuration=bench/gpt2_124m.toml
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options rounds batches prompts max_new_tokens precision python program configuration -- "$@"
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

head -c 20000 data/tinyshakespeare.txt >"$work/text.txt"
# shellcheck source=bench/lib/untrained_model.sh
source bench/lib/untrained_model.sh
untrained_model "$work" "$configuration" "$work/text.txt"
# Prompts of about prompt_tokens tokens.
prompt_tokens=64
# shellcheck disable=SC1003 # a backslash
tr -s ' \n' '\n' <data/tinyshakespeare.txt | tr -d '"\\' | awk -v prompts="$prompts" -v words=$((prompt_tokens * 3 / 5)) '
  made < prompts { text = text (text == "" ? "" : " ") $0 }
  made < prompts && ++n == words { printf "{\"prompt\": \"%s\"}\n", text; text = ""; n = 0; ++made }' >"$work/prompts.jsonl"
head -n 1 "$work/prompts.jsonl" >"$work/prompt.jsonl"

# seconds <file> <prompts> <tokens> <batch size>: prints the seconds of a generation and writes the texts to the file.
seconds() {
  local begin end
  begin=$(date +%s.%N)
  "$program" generate --load="$work/run" --prompts_file="$2" --max_new_tokens="$3" --batch_size="$4" --temperature=0 --ignore_eod \
    --precision="$precision" "${options[@]}" </dev/null >"$1" 2>/dev/null
  end=$(date +%s.%N)
  awk "BEGIN { print $end - $begin }"
}

if [ -n "$python" ]; then
  "$program" checkpoint export-hf "$work/run" "$work/exported" >/dev/null
  peer="\"torch\": \"$("$python" -c 'import torch; print(torch.__version__)')\", \"transformers\": \"$("$python" -c 'import transformers; print(transformers.__version__)')\""
fi
environment_json "\"prompts\": $prompts, \"prompt_tokens\": $prompt_tokens, \"max_new_tokens\": $max_new_tokens, \"precision\": \"$precision\"${python:+, $peer}"
results=$work/results
first=${batches%% *}
print_result() { # <program> <batch size> <seconds>
  awk "BEGIN { printf \"{\\\"generate\\\": \\\"$1\\\", \\\"batch_size\\\": $2, \\\"tokens_per_s\\\": %.1f}\\n\", $prompts * $max_new_tokens / ($3) }" |
    tee -a "$results"
}
for ((round = 0; round < rounds; ++round)); do
  start=$(seconds /dev/null "$work/prompt.jsonl" 1 1)
  for batch in $batches; do
    taken=$(seconds "$work/texts.$batch" "$work/prompts.jsonl" "$max_new_tokens" "$batch")
    cmp -s "$work/texts.$first" "$work/texts.$batch" || echo "texts with batch size $batch differ from those with $first" >&2
    print_result megatron_cpp "$batch" "$taken - $start"
    [ -n "$python" ] || continue
    line=$("$python" bench/torch_generate.py "$work/exported" --prompts="$prompts" --prompt_tokens=$prompt_tokens \
      --new_tokens="$max_new_tokens" --batch_size="$batch" --dtype="$precision" 2>/dev/null | grep '^{')
    print_result transformers "$batch" "$(tr -d '{}" ' <<<"$line" | cut -d: -f2)"
  done
done

tr -d '{}":,' <"$results" | awk '{ print $4, $2, $6 }' | sort -k1,1n -k2,2 -k3,3g | awk "$median_of"'
  function flush() {
    if (!n) return
    middle = median_of(speed, n)
    if (who == "megatron_cpp") own = middle
    printf "batch size %3d %-13s %8.1f tokens/s%s\n", batch, who, middle, who == "transformers" ? sprintf(", speedup %.2f", own / middle) : ""
  }
  $1 != batch || $2 != who { flush(); batch = $1; who = $2; n = 0 }
  { speed[++n] = $3 }
  END { flush() }' >&2
