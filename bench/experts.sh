#!/usr/bin/env bash
# Compares a mixture of experts with a dense model at equal training FLOPs: the quick start, and the same model with 4
# experts, two per token, each half as wide as the dense MLP. Both train at the same time on one thread each, for
# several numbers of iterations, over which the learning rate decays.
#
#   bench/experts.sh [--iterations=N,N,...] [--seeds=N,N,...] [--num_experts=4] [--program=PATH] [option of megatron_cpp pretrain ...]
#
# Needs the data of scripts/quickstart.sh. Prints JSON lines on standard output and a table with the bits per byte of
# the held-out text on standard error.
set -euo pipefail
cd "$(dirname "$0")/.."

iterations=300,600,1200
seeds=1234
num_experts=4
program=
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options iterations seeds num_experts program -- "$@"
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
data=runs/quickstart
# The weights of the two experts add up to 1. Scaled by 2, two halves of an MLP equal the full one at initialization.
experts=(--model.num_experts="$num_experts" --model.moe_router_topk=2 --model.moe_ffn_hidden_size=344 --model.moe_router_topk_scaling_factor=2
  --model.moe_aux_loss_coeff=0.01 --model.moe_z_loss_coeff=1e-3)

# flops <iterations> <option of pretrain ...>: prints the FLOPs of a run according to the dry run, which counts GEMMs,
# and for each token those of its experts only.
flops() {
  "$program" pretrain configs/quickstart.toml --dry_run --training.train_iters="$1" --checkpoint.save= "${options[@]}" "${@:2}" 2>&1 |
    sed -nE 's/.* ([0-9.e+]+) FLOP, .*/\1/p' | head -n 1
}

measure() { # <name> <iterations> <seed> <option of pretrain ...>
  local name=$1-$2-$3 of=$num_experts
  [ "$1" != dense ] || of=0
  "$program" pretrain configs/quickstart.toml --training.train_iters="$2" --training.seed="$3" --device.num_threads=1 \
    --checkpoint.save="$results/$name" --checkpoint.save_interval="$2" "${options[@]}" "${@:4}" >"$results/$name.log" 2>&1 ||
    { cat "$results/$name.log" >&2 && return 1; }
  "$program" evaluate --load="$results/$name" --text="$data/data/valid.txt" --num_threads=1 --json >"$results/$name.json" 2>>"$results/$name.log" ||
    { cat "$results/$name.log" >&2 && return 1; }
  rm -rf "${results:?}/$name"
  echo "{\"model\": \"$1\", \"num_experts\": $of, \"iterations\": $2, \"seed\": $3, \"flops\": $(flops "$2" "${@:4}"), \"held_out\": $(cat "$results/$name.json")}" \
    >"$results/$name.line"
}

# shellcheck disable=SC2119
environment_json
printf '%10s %6s %12s %12s %8s %8s\n' iterations seed dense_flops experts_flops dense experts >&2
for count in ${iterations//,/ }; do
  for seed in ${seeds//,/ }; do
    measure dense "$count" "$seed" &
    dense=$!
    measure experts "$count" "$seed" "${experts[@]}"
    wait "$dense"
    cat "$results/dense-$count-$seed.line" "$results/experts-$count-$seed.line"
    of() { sed -nE "s/.*\"$2\": ?([^,}]*).*/\1/p" "$results/$1-$count-$seed.line"; }
    printf '%10s %6s %12s %12s %8s %8s\n' "$count" "$seed" "$(of dense flops)" "$(of experts flops)" \
      "$(of dense bits_per_byte)" "$(of experts bits_per_byte)" >&2
  done
done
