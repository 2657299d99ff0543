#!/usr/bin/env bash
# How much faster `evaluate` is with several windows in a pass than with one: a long text, many short texts, and the continuations
# of a task, with so many windows side by side, in turn; their scores must be the same. JSON lines on standard output, seconds
# without those to start and to load; medians, and how many times one at a time, on standard error.
#   bench/evaluate.sh [--rounds=N] [--batches="1 8 32"] [--program=PATH] [--configuration=FILE] [option of megatron_cpp evaluate ...]
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=3
batches="1 8 32"
program=
configuration=bench/gpt2_14m.toml
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options rounds batches program configuration -- "$@"
build_program
# shellcheck source=bench/lib/machine.sh
source bench/lib/machine.sh
own=$(mktemp -d)
trap 'rm -rf "$own"' EXIT

head -c 120000 data/tinyshakespeare.txt >"$own/long.txt"
mkdir "$own/short"
awk -v folder="$own/short" 'BEGIN { RS = "" } NR <= 150 { print > (folder "/" sprintf("%03d", NR) ".txt") }' data/tinyshakespeare.txt
# Of each speech the next line, and those after the next.
awk 'BEGIN { RS = ""; FS = "\n" } NF >= 5 && made < 100 {
  gsub(/["\\\t]/, ""); ++made
  printf "{\"context\": \"%s\", \"continuations\": [\"%s\", \"%s\", \"%s\"], \"answer\": 0}\n", $2, $3, $4, $5
}' data/tinyshakespeare.txt >"$own/lines.jsonl"
head -c 200 "$own/long.txt" >"$own/little.txt"

# shellcheck source=bench/lib/untrained_model.sh
source bench/lib/untrained_model.sh
untrained_model "$own" "$configuration" "$own/long.txt"

# seconds <what> <option ...>: of an evaluation, whose result goes to $own/<what>.json
seconds() {
  local what=$1 begin end
  shift
  begin=$(date +%s.%N)
  "$program" evaluate --load="$own/run" --json "$@" "${options[@]}" </dev/null 2>/dev/null | grep '^{' >"$own/$what.json"
  end=$(date +%s.%N)
  awk "BEGIN { print $end - $begin }"
}

# shellcheck disable=SC2119
machine_json
results=$own/results
first=${batches%% *}
for ((round = 0; round < rounds; ++round)); do
  start=$(seconds start --text="$own/little.txt")
  for batch in $batches; do
    for what in long short tasks; do
      case $what in
        long) texts=(--text="$own/long.txt") ;;
        short) texts=(--text="$own/short/*.txt" --by_file) ;;
        tasks) texts=(--tasks="$own/lines.jsonl") ;;
      esac
      taken=$(seconds "$what.$batch" "${texts[@]}" --micro_batch_size="$batch")
      cmp -s "$own/$what.$first.json" "$own/$what.$batch.json" || echo "$what: other scores with $batch than with $first" >&2
      echo "{\"evaluate\": \"$what\", \"micro_batch_size\": $batch, \"seconds\": $(awk "BEGIN { print $taken - $start }")}" |
        tee -a "$results"
    done
  done
done

tr -d '{}":,' <"$results" | awk '{ print $2, $4, $6 }' | sort -k1,1 -k2,2n -k3,3g | awk "$median_of"'
  function flush() {
    if (!n) return
    middle = median_of(taken, n)
    if (!(what in one)) one[what] = middle
    printf "%-6s %3d at once %8.2f s, %.2f times as fast as the first\n", what, batch, middle, one[what] / middle
  }
  $1 != what || $2 != batch { flush(); what = $1; batch = $2; n = 0 }
  { taken[++n] = $3 }
  END { flush() }' >&2
