#!/usr/bin/env bash
# What it costs to spread a step over two ranks of one machine: tokens/s of one rank with two threads against two ranks with
# one thread each, as data parallelism and as tensor parallelism, in turn. JSON lines on standard output; medians of the
# ratios over the rounds on standard error.
#   bench/ranks.sh [--rounds=N] [option of megatron_cpp bench step ...]
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=3
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options rounds -- "$@"
scripts/build.sh release megatron_cpp >/dev/null
program=build/release/megatron_cpp
# shellcheck source=bench/lib/machine.sh
source bench/lib/machine.sh
launch_ranks 2 --bind-to none
results=$(mktemp)
trap 'rm -f "$results"' EXIT

# run <model> <layout> <words before the program> -- <options>
run() {
  local model=$1 layout=$2 line
  line=$(bench_json step "bench/gpt2_$model.toml" "${@:3}" --training.global_batch_size=8 "${options[@]}")
  echo "{\"model\": \"$model\", \"layout\": \"$layout\", \"result\": $line}" | tee -a "$results"
}

# shellcheck disable=SC2119
machine_json
for ((round = 0; round < rounds; ++round)); do
  for model in 14m 124m; do
    micro=1
    [ $model != 14m ] || micro=4
    run $model one_rank env -- --device.num_threads=2 --training.micro_batch_size=$micro
    run $model dp2 "${launch[@]}" -- --device.num_threads=1 --training.micro_batch_size=$micro
    run $model tp2 "${launch[@]}" -- --device.num_threads=1 --training.micro_batch_size=$micro --parallel.tensor_model_parallel_size=2
    run $model tp2_sp "${launch[@]}" -- --device.num_threads=1 --training.micro_batch_size=$micro --parallel.tensor_model_parallel_size=2 \
      --parallel.sequence_parallel=true
  done
done

grep -o '"model": "[^"]*", "layout": "[^"]*"\|"tokens_per_s":[^,]*' "$results" | paste - - | tr -d '"' | awk -F'[:,\t]' '
  { model = $2; layout = $4; speed = $6; if (layout == " one_rank") base = speed; else print model, layout, speed / base }' |
  sort -k1,1 -k2,2 -k3,3g | awk '
    function flush() { if (n) printf "%-6s %-8s %.3f\n", model, layout, ratio[int((n + 1) / 2)] }
    $1 != model || $2 != layout { flush(); model = $1; layout = $2; n = 0 }
    { ratio[++n] = $3 }
    END { flush() }' >&2
