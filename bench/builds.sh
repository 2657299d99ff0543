#!/usr/bin/env bash
# Compares the speed and memory of two builds of the program: training steps of GPT-2 14M on one and two ranks. Runs
# alternate.
#
#   bench/builds.sh BEFORE AFTER [--rounds=N] [option of megatron_cpp bench step ...]
#
# Prints JSON lines on standard output, and on standard error the medians over the rounds of AFTER's seconds and peak
# memory relative to BEFORE's. scripts/compare_builds.sh compares the results.
set -euo pipefail
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
[ $# -ge 2 ] || { usage && exit 2; }
# shellcheck disable=SC2034 # run reads them by name
before=$(readlink -f "$1") after=$(readlink -f "$2")
shift 2
cd "$(dirname "$0")/.."

rounds=5
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options rounds -- "$@"
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
launch_ranks 2 --bind-to none
results=$(mktemp)
trap 'rm -f "$results"' EXIT

# run <case> <launcher word ...> -- <option ...>: runs both builds, in alternating order.
run() {
  local name=$1 build program line builds=(before after)
  shift
  [ $((round % 2)) -eq 0 ] || builds=(after before)
  for build in "${builds[@]}"; do
    program=${!build}
    line=$(bench_json step bench/gpt2_14m.toml "$@" "${options[@]}")
    echo "{\"case\": \"$name\", \"build\": \"$build\", \"result\": $line}" | tee -a "$results"
  done
}

# shellcheck disable=SC2119
environment_json
for ((round = 0; round < rounds; ++round)); do
  run fp32 env -- --device.num_threads=2
  run bf16 env -- --device.num_threads=2 --training.precision=bf16
  run fp32_avx2 env -- --device.num_threads=2 --device.cpu_isa=avx2
  run dp2 "${launch[@]}" -- --device.num_threads=1 --training.micro_batch_size=4
  run tp2 "${launch[@]}" -- --device.num_threads=1 --parallel.tensor_model_parallel_size=2
done

# Extracts case, build, seconds and GiB per line, then the ratios of each round.
sed -nE 's/.*"case": "([^"]*)", "build": "([^"]*)".*"step_s":([^,}]*).*"peak_gib":([^,}]*).*/\1 \2 \3 \4/p' "$results" | awk '
  { seconds[$2] = $3; memory[$2] = $4; ++seen[$1] }
  seen[$1] % 2 == 0 { print $1, "seconds", seconds["after"] / seconds["before"]; print $1, "memory", memory["after"] / memory["before"] }' |
  sort -k1,1 -k2,2 -k3,3g | awk "$median_of"'
    function flush() { if (n) printf "%-10s %-8s %.3f\n", name, what, median_of(ratio, n) }
    $1 != name || $2 != what { flush(); name = $1; what = $2; n = 0 }
    { ratio[++n] = $3 }
    END { flush() }' >&2
