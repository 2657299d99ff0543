#!/usr/bin/env bash
# Compares architectures at equal training FLOPs: the quick start's dense model, a mixture of experts, multi-latent
# attention, and hybrids of attention with Gated DeltaNet and with Mamba-2, all with the same width, MLP and optimizer.
# The dense model trains for the given number of iterations, and the others for as many as take the same FLOPs.
#
#   bench/architectures_quality.sh [--iterations=N] [--seeds=N,N,...] [--architectures=NAME,NAME,...] [--results=FILE]
#     [--program=PATH] [option of megatron_cpp pretrain ...]
#
#   --results=FILE  file of earlier lines of standard output: runs in it are not repeated, new ones are appended
#
# Trains on one thread. Prints JSON lines on standard output, and on standard error a table with parameters, FLOPs,
# processor time of training and the loss of held-out text.
set -euo pipefail
cd "$(dirname "$0")/.."

iterations=400
seeds=1234,2
architectures=dense,experts,mla,gated_delta_net,mamba
results=
program=
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options iterations seeds architectures results program -- "$@"
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
# shellcheck source=bench/lib/quickstart_text.sh
source bench/lib/quickstart_text.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
prepare_text "$folder"
results=${results:-$folder/results}
data=(--data.train_data_path="$folder/train_text_document" --data.valid_data_path="$folder/valid_text_document"
  --data.tokenizer_model="$folder/tokenizer.model")

# Sets `keys`, the options of an architecture.
describe() {
  case $1 in
    dense) keys=() ;;
    # The weights of the two experts add up to 1. Scaled by 2, two halves of an MLP equal the full one at initialization.
    experts) keys=(--model.num_experts=4 --model.moe_router_topk=2 --model.moe_ffn_hidden_size=344
      --model.moe_router_topk_scaling_factor=2 --model.moe_aux_loss_coeff=0.01 --model.moe_z_loss_coeff=1e-3) ;;
    mla) keys=(--model.multi_latent_attention=true --model.q_lora_rank=128 --model.kv_lora_rank=64 --model.qk_head_dim=32
      --model.qk_pos_emb_head_dim=16 --model.v_head_dim=32) ;;
    gated_delta_net) keys=("--model.linear_attention_freq=[4]" --model.linear_num_key_heads=4 --model.linear_num_value_heads=8
      --model.linear_key_head_dim=64 --model.linear_value_head_dim=64) ;;
    mamba) keys=(--model.num_layers=8 --model.hybrid_layer_pattern=M-M-*-M- --model.mamba_num_groups=2
      --model.mamba_num_heads=8 --model.mamba_head_dim=64 --model.mamba_state_dim=64) ;;
    *) echo "unknown architecture $1; see the header of $0" >&2 && exit 2 ;;
  esac
}

# dry_run <iterations>: prints the plan of a run with `keys`.
dry_run() {
  "$program" pretrain configs/quickstart.toml --dry_run --training.train_iters="$1" --checkpoint.save= --device.num_threads=1 \
    "${data[@]}" "${keys[@]}" "${options[@]}" 2>&1
}

# plan <architecture>: sets `count` to the iterations that take the FLOPs of the dense model, and `flops` and
# `parameters`.
plan() {
  local text all
  flops_of() { sed -nE 's/.*operations +([0-9.e+]+) TFLOP, .*/\1/p' | head -n 1; }
  describe dense
  all=$(dry_run 1000 | flops_of)
  describe "$1"
  text=$(dry_run 1000)
  count=$(awk -v n="$iterations" -v all="$all" -v own="$(flops_of <<<"$text")" 'BEGIN { printf "%.0f", n * all / own }')
  flops=$(awk -v n="$count" -v own="$(flops_of <<<"$text")" 'BEGIN { printf "%.4g", n * own * 1e9 }')
  parameters=$(sed -nE 's/^parameters: .*\(([0-9]+)\).*/\1/p' <<<"$text")
}

measure() { # <architecture> <seed>
  local key="\"architecture\": \"$1\", \"seed\": $2, \"dense_iterations\": $iterations" run=$folder/run seconds
  if [ -f "$results" ] && grep -qF "$key" "$results"; then return; fi
  plan "$1"
  rm -rf "$run"
  TIMEFORMAT='%U %S'
  seconds=$({ time "$program" pretrain configs/quickstart.toml --training.train_iters="$count" --training.seed="$2" \
    --training.eval_iters=0 --training.eval_interval=0 --checkpoint.save_interval=0 --checkpoint.save="$run" \
    --device.num_threads=1 "${data[@]}" "${keys[@]}" "${options[@]}" >"$folder/log" 2>&1 </dev/null; } 2>&1) ||
    { cat "$folder/log" >&2 && exit 1; }
  echo "{$key, \"iterations\": $count, \"flops\": $flops, \"parameters\": $parameters, \"processor_s\": $(awk '{ print $1 + $2 }' <<<"$seconds"), \"held_out\": $("$program" evaluate --load="$run" --text="$folder/valid.txt" --num_threads=1 --json | sed 's/"checkpoint":"[^"]*",//')}" |
    tee -a "$results"
}

# shellcheck disable=SC2119
environment_json | tee -a "$results"
for seed in ${seeds//,/ }; do
  for architecture in ${architectures//,/ }; do measure "$architecture" "$seed"; done
done

printf '%-16s %10s %8s %10s %10s  %s\n' architecture parameters TFLOP iterations processor_s 'held-out loss by seed' >&2
for architecture in ${architectures//,/ }; do
  grep "\"architecture\": \"$architecture\".*\"dense_iterations\": $iterations," "$results" |
    sed -nE 's/.*"iterations": ([0-9]+), "flops": ([^,]*), "parameters": ([0-9]+), "processor_s": ([^,]*), .*"loss": ?([^,}]*).*/\1 \2 \3 \4 \5/p' |
    awk -v name="$architecture" '{ losses = losses " " sprintf("%.4f", $5); seconds += $4; n = $1; flops = $2; parameters = $3 }
      END { printf "%-16s %10d %8.1f %10d %10.0f %s\n", name, parameters, flops / 1e12, n, seconds / NR, losses }' >&2
done
