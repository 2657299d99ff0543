#!/usr/bin/env bash
# How fast `generate` makes tokens, with one, several or many prompts side by side, in turn; and, where a Python with torch and
# transformers is given, how fast transformers' generate() makes as many of the same weights. The texts must be the same however
# many are made at a time. JSON lines on standard output, seconds without those to start and to load; medians on standard error.
#   bench/generate.sh [--rounds=N] [--batches="1 8 32"] [--prompts=N] [--max_new_tokens=N] [--precision=fp32|bf16] [--python=PATH]
#     [--program=PATH] [--configuration=FILE] [option of megatron_cpp generate ...]
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
# shellcheck source=bench/lib/machine.sh
source bench/lib/machine.sh
own=$(mktemp -d)
trap 'rm -rf "$own"' EXIT

head -c 20000 data/tinyshakespeare.txt >"$own/text.txt"
# shellcheck source=bench/lib/untrained_model.sh
source bench/lib/untrained_model.sh
untrained_model "$own" "$configuration" "$own/text.txt"
# Words until there are as many tokens as prompt_tokens says, give or take a few.
prompt_tokens=64
tr -s ' \n' '\n' <data/tinyshakespeare.txt | tr -d '"\\' | awk -v prompts="$prompts" -v words=$((prompt_tokens * 3 / 5)) '
  made < prompts { text = text (text == "" ? "" : " ") $0 }
  made < prompts && ++n == words { printf "{\"prompt\": \"%s\"}\n", text; text = ""; n = 0; ++made }' >"$own/prompts.jsonl"
head -n 1 "$own/prompts.jsonl" >"$own/prompt.jsonl"

# seconds <file> <prompts> <tokens> <at a time>: of a generation, whose texts go to the file
seconds() {
  local begin end
  begin=$(date +%s.%N)
  "$program" generate --load="$own/run" --prompts_file="$2" --max_new_tokens="$3" --batch_size="$4" --temperature=0 --ignore_eod \
    --precision="$precision" "${options[@]}" </dev/null >"$1" 2>/dev/null
  end=$(date +%s.%N)
  awk "BEGIN { print $end - $begin }"
}

if [ -n "$python" ]; then
  "$program" checkpoint export-hf "$own/run" "$own/exported" >/dev/null
  peer="\"torch\": \"$("$python" -c 'import torch; print(torch.__version__)')\", \"transformers\": \"$("$python" -c 'import transformers; print(transformers.__version__)')\""
fi
machine_json "\"prompts\": $prompts, \"prompt_tokens\": $prompt_tokens, \"max_new_tokens\": $max_new_tokens, \"precision\": \"$precision\"${python:+, $peer}"
results=$own/results
first=${batches%% *}
say() { # <who> <at a time> <seconds>
  awk "BEGIN { printf \"{\\\"generate\\\": \\\"$1\\\", \\\"batch_size\\\": $2, \\\"tokens_per_s\\\": %.1f}\\n\", $prompts * $max_new_tokens / ($3) }" |
    tee -a "$results"
}
for ((round = 0; round < rounds; ++round)); do
  start=$(seconds /dev/null "$own/prompt.jsonl" 1 1)
  for batch in $batches; do
    taken=$(seconds "$own/texts.$batch" "$own/prompts.jsonl" "$max_new_tokens" "$batch")
    cmp -s "$own/texts.$first" "$own/texts.$batch" || echo "other texts with $batch at a time than with $first" >&2
    say megatron_cpp "$batch" "$taken - $start"
    [ -n "$python" ] || continue
    line=$("$python" bench/torch_generate.py "$own/exported" --prompts="$prompts" --prompt_tokens=$prompt_tokens \
      --new_tokens="$max_new_tokens" --batch_size="$batch" --dtype="$precision" 2>/dev/null | grep '^{')
    say transformers "$batch" "$(tr -d '{}" ' <<<"$line" | cut -d: -f2)"
  done
done

tr -d '{}":,' <"$results" | awk '{ print $4, $2, $6 }' | sort -k1,1n -k2,2 -k3,3g | awk "$median_of"'
  function flush() {
    if (!n) return
    middle = median_of(speed, n)
    if (who == "megatron_cpp") own = middle
    printf "%3d at a time %-13s %8.1f tokens/s%s\n", batch, who, middle, who == "transformers" ? sprintf(", of which ours are %.2f times", own / middle) : ""
  }
  $1 != batch || $2 != who { flush(); batch = $1; who = $2; n = 0 }
  { speed[++n] = $3 }
  END { flush() }' >&2
