#!/usr/bin/env bash
# What it costs to keep numbers of GPT-2 124M on a disk: tokens/s and memory of steps of eight microbatches with the optimizer's state,
# the activations, the weights (ZeRO 3) or all of them there, against the same with all in memory, in turn. JSON lines on standard
# output; medians over the rounds of the share of the speed in memory, and of the measured and the planned bytes of activations, on
# standard error.
#   bench/offload_speed.sh [--folder=DIR] [--rounds=N] [option of megatron_cpp bench step ...]
# DIR, on the disk to measure, needs 8 GB; without it, a temporary folder.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=
rounds=3
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options folder rounds -- "$@"
program=${MEGATRON_CPP:-}
build_program
# shellcheck source=bench/lib/machine.sh
source bench/lib/machine.sh
own=$(mktemp -d ${folder:+-p "$folder"})
trap 'rm -rf "$own"' EXIT

# run <name> <option ...>
run() {
  local line
  line=$(bench_json step bench/gpt2_124m.toml -- --warmup=1 --repeats=3 --training.global_batch_size=8 "${@:2}" "${options[@]}")
  echo "{\"kept\": \"$1\", \"result\": $line}" | tee -a "$own/results"
}

disk=--optimizer.offload_folder=$own
machine_json
for ((round = 0; round < rounds; ++round)); do
  run in_memory
  run state_on_disk --optimizer.offload=file "$disk"
  run activations_on_disk --training.offload_activations=file "$disk"
  run weights_on_disk --parallel.zero_stage=3 --optimizer.offload_params=file "$disk"
  run all_on_disk --parallel.zero_stage=3 --optimizer.offload=file --optimizer.offload_params=file --training.offload_activations=file "$disk"
done

member() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^,\"}]*\).*/\1/p" "$own/results"; }
paste <(member kept) <(member tokens_per_s) <(member activations_bytes) <(member activations_bytes_estimated) | awk '
  { if ($1 == "in_memory") base = $2; print $1, $2 / base, $3, $4 }' | sort -k1,1 -k2,2g | awk "$median_of"'
  function flush() { if (n) printf "%-20s %.3f of the speed, activations %.0f MiB, planned %.0f\n", name, median_of(speed, n), bytes / 2^20, planned / 2^20 }
  $1 != name { flush(); name = $1; n = 0 }
  { speed[++n] = $2; bytes = $3; planned = $4 }
  END { flush() }' >&2
