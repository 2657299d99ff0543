#!/usr/bin/env bash
# Measures the cost of offloading to a disk: tokens/s and memory of steps of GPT-2 124M with eight microbatches, with
# the optimizer state, the activations, the weights (ZeRO 3) or all of them offloaded, relative to none. Runs alternate.
#
#   bench/offload_speed.sh [--folder=DIR] [--rounds=N] [option of megatron_cpp bench step ...]
#
#   --folder=DIR   a folder on the disk to measure, with 8 GB of free space (default: a temporary folder)
#
# Prints JSON lines on standard output. On standard error, medians over the rounds of the relative speed, and measured
# and estimated bytes of activations.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=
rounds=3
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options folder rounds -- "$@"
program=${MEGATRON_CPP:-}
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
work=$(mktemp -d ${folder:+-p "$folder"})
trap 'rm -rf "$work"' EXIT

# run <name> <option ...>
run() {
  local line
  line=$(bench_json step bench/gpt2_124m.toml -- --warmup=1 --repeats=3 --training.global_batch_size=8 "${@:2}" "${options[@]}")
  echo "{\"kept\": \"$1\", \"result\": $line}" | tee -a "$work/results"
}

disk=--optimizer.offload_folder=$work
environment_json
for ((round = 0; round < rounds; ++round)); do
  run in_memory
  run state_on_disk --optimizer.offload=file "$disk"
  run activations_on_disk --training.offload_activations=file "$disk"
  run weights_on_disk --parallel.zero_stage=3 --optimizer.offload_params=file "$disk"
  run all_on_disk --parallel.zero_stage=3 --optimizer.offload=file --optimizer.offload_params=file --training.offload_activations=file "$disk"
done

member() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\).*/\1/p" "$work/results"; }
paste <(member kept) <(member tokens_per_s) <(member activations_bytes) <(member activations_bytes_estimated) | awk '
  { if ($1 == "in_memory") base = $2; print $1, $2 / base, $3, $4 }' | sort -k1,1 -k2,2g | awk "$median_of"'
  function flush() { if (n) printf "%-20s relative speed %.3f, activations %.0f MiB, estimated %.0f\n", name, median_of(speed, n), bytes / 2^20, planned / 2^20 }
  $1 != name { flush(); name = $1; n = 0 }
  { speed[++n] = $2; bytes = $3; planned = $4 }
  END { flush() }' >&2
