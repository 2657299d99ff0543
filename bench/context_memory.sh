#!/usr/bin/env bash
# Compares measured and estimated memory of training steps with context parallelism over 1, 2, 4 and 8 ranks.
#
#   bench/context_memory.sh [--length=8192] [--ranks="1 2 4 8"] [--program=PATH] [option of megatron_cpp bench step ...]
#
# Prints JSON lines on standard output. On standard error, the activations in MiB, and their total over the ranks
# relative to one rank.
set -euo pipefail
cd "$(dirname "$0")/.."

length=8192
ranks="1 2 4 8"
program=
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options length ranks program -- "$@"
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
results=$(mktemp)
trap 'rm -f "$results"' EXIT

# shellcheck disable=SC2119
environment_json
for n in $ranks; do
  launch_ranks "$n" --bind-to none
  line=$(bench_json step bench/gpt2_long.toml "${launch[@]}" -- --warmup=0 --repeats=1 --device.num_threads=1 \
    --model.seq_length="$length" --parallel.context_parallel_size="$n" "${options[@]}")
  echo "{\"length\": $length, \"ranks\": $n, \"result\": $line}" | tee -a "$results"
done

sed 's/.*"ranks": \([0-9]*\),.*"activations_bytes":\([0-9.e+]*\),"activations_bytes_estimated":\([0-9.e+]*\).*/\1 \2 \3/' "$results" |
  awk 'NR == 1 { one = $1 * $2 }
    { printf "%d ranks: measured %.1f MiB, estimated %.1f, total %.3f of one rank\n", $1, $2 / 2^20, $3 / 2^20, $1 * $2 / one }' >&2
