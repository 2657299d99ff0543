#!/usr/bin/env bash
# Measures the speed of low-precision recipes: tokens/s of steps with each recipe in all linear layers of the decoder,
# relative to bf16. On a CPU, recipes are emulated. Runs alternate.
#
#   bench/recipes.sh [--rounds=N] [--models="14m 124m"] [--program=PATH] [option of megatron_cpp bench step ...]
#
# Prints JSON lines on standard output and medians of the ratios over the rounds on standard error.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=3
models="14m 124m"
program=
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options rounds models program -- "$@"
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
results=$(mktemp)
trap 'rm -f "$results"' EXIT

# shellcheck disable=SC2119
environment_json
for ((round = 0; round < rounds; ++round)); do
  for model in $models; do
    for recipe in bf16 tensorwise delayed blockwise mxfp8 nvfp4; do
      line=$(bench_json step "bench/gpt2_$model.toml" -- --warmup=1 --repeats=3 --training.precision=bf16 \
        --training.low_precision="[{modules = 'decoder.*', recipe = '$recipe'}]" "${options[@]}")
      echo "{\"model\": \"$model\", \"recipe\": \"$recipe\", \"result\": $line}" | tee -a "$results"
    done
  done
done

relative_speeds recipe bf16 "$results" >&2
