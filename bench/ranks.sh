#!/usr/bin/env bash
# Measures the cost of distributing a step over two ranks of one host: tokens/s of two ranks with one thread each,
# with data, tensor, context and pipeline parallelism, relative to one rank with two threads. Runs alternate.
# bench/moe.sh measures expert parallelism.
#
#   bench/ranks.sh [--rounds=N] [--models="14m 124m"] [--program=PATH] [option of megatron_cpp bench step ...]
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
launch_ranks 2 --bind-to none
results=$(mktemp)
trap 'rm -f "$results"' EXIT

# run <model> <layout> <launcher word ...> -- <option ...>
run() {
  local model=$1 layout=$2 line
  line=$(bench_json step "bench/gpt2_$model.toml" "${@:3}" "${batch[@]}" "${options[@]}")
  echo "{\"model\": \"$model\", \"layout\": \"$layout\", \"result\": $line}" | tee -a "$results"
}
run_on_two() { # <model> <layout> <option ...>
  run "$1" "$2" "${launch[@]}" -- --device.num_threads=1 "${@:3}"
}

# Eight microbatches, because fewer leave a pipeline idle. Its four virtual stages are balanced as well as full layers allow: the
# output layer takes as long as two layers of the small model and six of the larger one.
declare -A micro=([14m]=4 [124m]=1) stages=([14m]='Ett|tt|tt|L' [124m]='Ettt|tttt|ttttt|L')

# shellcheck disable=SC2119
environment_json
for ((round = 0; round < rounds; ++round)); do
  for model in $models; do
    batch=(--training.micro_batch_size="${micro[$model]}" --training.global_batch_size=$((8 * micro[$model])))
    run "$model" one_rank env -- --device.num_threads=2
    run_on_two "$model" dp2
    run_on_two "$model" tp2 --parallel.tensor_model_parallel_size=2
    run_on_two "$model" tp2_sp --parallel.tensor_model_parallel_size=2 --parallel.sequence_parallel=true
    run_on_two "$model" cp2 --parallel.context_parallel_size=2
    run_on_two "$model" cp2_a2a --parallel.context_parallel_size=2 --parallel.cp_comm_type=a2a
    run_on_two "$model" pp2 --parallel.pipeline_model_parallel_size=2 --parallel.pipeline_schedule=zb-v \
      --parallel.num_virtual_stages_per_pipeline_rank=2 --parallel.pipeline_model_parallel_layout="${stages[$model]}"
  done
done

relative_speeds layout one_rank "$results" >&2
