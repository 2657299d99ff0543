#!/usr/bin/env bash
# Measures `evaluate` with several windows per forward pass: a long text, many short texts, continuations of a task, and
# choices of one letter, with different batch sizes. With --python, also the long text with transformers, and the tasks
# with lm-evaluation-harness, with the same weights. Runs alternate, and scores must be identical for all batch sizes.
#
#   bench/evaluate.sh [--rounds=N] [--batches="1 8 32"] [--python=PATH] [--program=PATH] [--configuration=FILE]
#     [option of megatron_cpp evaluate ...]
#
#   --python=PATH  a Python with torch, transformers and lm_eval
#
# Prints JSON lines with seconds, excluding start-up and loading, on standard output, and medians with the speedup over
# the first batch size on standard error.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=3
batches="1 8 32"
python=
program=
configuration=bench/gpt2_14m.toml
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options rounds batches python program configuration -- "$@"
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

head -c 120000 data/tinyshakespeare.txt >"$work/long.txt"
mkdir "$work/short"
awk -v folder="$work/short" 'BEGIN { RS = "" } NR <= 150 { print > (folder "/" sprintf("%03d", NR) ".txt") }' data/tinyshakespeare.txt
# Tasks: the second line of a speech as context, and its next three lines as continuations, of which the first is
# correct.
awk 'BEGIN { RS = ""; FS = "\n" } NF >= 5 && made < 100 {
  gsub(/["\\\t]/, ""); ++made
  printf "{\"context\": \"%s\", \"continuations\": [\"%s\", \"%s\", \"%s\"], \"answer\": 0}\n", $2, $3, $4, $5
}' data/tinyshakespeare.txt >"$work/lines.jsonl"
# Questions: the first four lines of a speech, and the letter of one of four choices.
awk 'BEGIN { RS = ""; FS = "\n" } NF >= 5 && made < 100 {
  gsub(/["\\\t]/, ""); ++made
  printf "{\"context\": \"%s %s %s %s\", \"continuations\": [\"A\", \"B\", \"C\", \"D\"], \"answer\": 0}\n", $2, $3, $4, $5
}' data/tinyshakespeare.txt >"$work/letters.jsonl"
head -c 200 "$work/long.txt" >"$work/little.txt"

# shellcheck source=bench/lib/untrained_model.sh
source bench/lib/untrained_model.sh
untrained_model "$work" "$configuration" "$work/long.txt"

# seconds <name> <option ...>: prints the seconds of an evaluation and writes its result to $work/<name>.json.
seconds() {
  local what=$1 begin end
  shift
  begin=$(date +%s.%N)
  "$program" evaluate --load="$work/run" --json "$@" "${options[@]}" </dev/null 2>/dev/null | grep '^{' >"$work/$what.json"
  end=$(date +%s.%N)
  awk "BEGIN { print $end - $begin }"
}

window=
if [ -n "$python" ]; then
  "$program" checkpoint export-hf "$work/run" "$work/exported" >/dev/null
  "$program" tokenizer encode --model="$work/tokenizer.model" --input="$work/long.txt" >"$work/tokens.txt"
  window=$("$program" config "$configuration" | sed -n 's/^seq_length = //p')
fi
# seconds_of_peer <batch size> <option ...>: prints the seconds of an evaluation with transformers.
seconds_of_peer() {
  local batch=$1
  shift
  "$python" bench/torch_evaluate.py "$work/exported" --batch_size="$batch" "$@" 2>/dev/null |
    sed -n 's/.*"seconds": \([^,]*\),.*/\1/p'
}
print_result() { # <input> <batch size> <seconds>
  echo "{\"evaluate\": \"$1\", \"micro_batch_size\": $2, \"seconds\": $3}" | tee -a "$results"
}

# shellcheck disable=SC2119
environment_json
results=$work/results
first=${batches%% *}
for ((round = 0; round < rounds; ++round)); do
  start=$(seconds start --text="$work/little.txt")
  for batch in $batches; do
    for what in long short tasks letters; do
      case $what in
        long) texts=(--text="$work/long.txt") peer=(--tokens="$work/tokens.txt" --window="$window" --stride="$window") ;;
        short) texts=(--text="$work/short/*.txt" --by_file) peer=() ;;
        tasks) texts=(--tasks="$work/lines.jsonl") peer=(--tasks="$work/lines.jsonl") ;;
        letters) texts=(--tasks="$work/letters.jsonl") peer=(--tasks="$work/letters.jsonl") ;;
      esac
      taken=$(seconds "$what.$batch" "${texts[@]}" --micro_batch_size="$batch")
      cmp -s "$work/$what.$first.json" "$work/$what.$batch.json" || echo "$what: scores with batch size $batch differ from those with $first" >&2
      print_result "$what" "$batch" "$(awk "BEGIN { print $taken - $start }")"
      [ -z "$python" ] || [ ${#peer[@]} = 0 ] || print_result "${what}_transformers" "$batch" "$(seconds_of_peer "$batch" "${peer[@]}")"
    done
  done
done

tr -d '{}":,' <"$results" | awk '{ print $2, $4, $6 }' | sort -k1,1 -k2,2n -k3,3g | awk "$median_of"'
  function flush() {
    if (!n) return
    middle = median_of(taken, n)
    if (!(what in one)) one[what] = middle
    printf "%-20s batch size %3d %8.2f s, speedup %.2f\n", what, batch, middle, one[what] / middle
  }
  $1 != what || $2 != batch { flush(); what = $1; batch = $2; n = 0 }
  { taken[++n] = $3 }
  END { flush() }' >&2
