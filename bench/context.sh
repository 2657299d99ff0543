#!/usr/bin/env bash
# Measures the cost of sharding samples over two ranks of one host (context parallelism): tokens/s of training steps
# on two ranks with one thread each relative to one rank with two threads, with each communication type; and attention
# alone with samples of one document, of short packed documents, and of documents of mixed lengths. Runs alternate.
#
#   bench/context.sh [--rounds=N] [--repeats=N] [--lengths="8192 32768"] [--ways="p2p all_gather a2a"] [--program=PATH]
#     [option of megatron_cpp bench step ...]
#
# Prints JSON lines on standard output and medians of the ratios over the rounds on standard error.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=3
repeats=3
lengths="8192 32768"
ways="p2p all_gather a2a"
program=
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options rounds repeats lengths ways program -- "$@"
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
launch_ranks 2 --bind-to none
results=$(mktemp)
trap 'rm -f "$results"' EXIT

# run <length> <layout> <launcher word ...> -- <option ...>
run() {
  local length=$1 layout=$2 line
  line=$(bench_json step bench/gpt2_long.toml "${@:3}" --warmup=1 --repeats="$repeats" --model.seq_length="$length" "${options[@]}")
  echo "{\"length\": $length, \"layout\": \"$layout\", \"result\": $line}" | tee -a "$results"
}

# attention <launcher word ...> -- <option ...>
attention() { echo "{\"attention\": $(bench_json attention bench/gpt2_long.toml "$@")}"; }

# shellcheck disable=SC2119
environment_json
for ((round = 0; round < rounds; ++round)); do
  for length in $lengths; do
    run "$length" one_rank env -- --device.num_threads=2
    for way in $ways; do
      run "$length" "$way" "${launch[@]}" -- --device.num_threads=1 --parallel.context_parallel_size=2 --parallel.cp_comm_type="$way"
    done
  done
done
for documents in "" --document_length=512 --document_length=3500,200,700,64,1500,400,90,1200; do
  # shellcheck disable=SC2086 # empty or one word
  attention env -- --device.num_threads=2 $documents
  # shellcheck disable=SC2086
  attention "${launch[@]}" -- --device.num_threads=1 $documents
done

grep -o '"length": [^,]*, "layout": "[^"]*"\|"tokens_per_s":[^,]*' "$results" | paste - - | tr -d '"' | awk -F'[:,\t]' '
  { length_ = $2; layout = $4; speed = $6; if (layout == " one_rank") base = speed; else print length_, layout, speed / base }' |
  sort -k1,1n -k2,2 -k3,3g | awk "$median_of"'
    function flush() { if (n) printf "%-6s %-10s %.3f\n", length_, layout, median_of(ratio, n) }
    $1 != length_ || $2 != layout { flush(); length_ = $1; layout = $2; n = 0 }
    { ratio[++n] = $3 }
    END { flush() }' >&2
