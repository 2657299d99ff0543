#!/usr/bin/env bash
# The program on simulated GPUs: layouts over MPI train like one rank, architectures train as on the CPU, a killed run
# continues with bitwise identical results or on a different layout, and evaluation and generation match the CPU:
# tests/cuda_simulator/program.sh <megatron_cpp>
set -euo pipefail
export MEGATRON_CPP=$1
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMP_NUM_THREADS=1 MCPP_SIMULATOR_GPUS=1
steps=6
launcher=(mpirun --oversubscribe --allow-run-as-root --bind-to none --mca mpi_yield_when_idle 1)

head -c 60000 "$root/data/tinyshakespeare.txt" >train.txt
"$MEGATRON_CPP" tokenizer train --input=train.txt --output=tokenizer.model --vocab_size=400 >log 2>&1
"$MEGATRON_CPP" preprocess --input=train.txt --output_prefix=train --tokenizer_model=tokenizer.model \
  --text_document=paragraph >log 2>&1
sed -e "s|@folder@|$folder|" -e 's/^eval_interval = .*/eval_interval = 3/' -e 's/^eval_iters = .*/eval_iters = 1/' \
  -e "s/^train_iters = .*/train_iters = $steps/" -e 's/^save_interval = .*/save_interval = 2/' \
  -e 's/^micro_batch_size = .*/micro_batch_size = 2/' "$root/tests/support/small_training.toml" >run.toml

fail() {
  echo "$*"
  [ ! -f log ] || tail -n 20 log
  exit 1
}
# pretrain_on <device> <name> <ranks> [argument ...]: trains in fp32 and keeps checkpoints and metrics in a folder.
pretrain_on() {
  "${launcher[@]}" -n "$3" "$MEGATRON_CPP" pretrain run.toml --device.device="$1" --training.precision=fp32 \
    --checkpoint.save="$2" "${@:4}" >log 2>&1
}
pretrain() { pretrain_on cuda "$@"; }
losses() { sed -n 's/.*"type":"\(train\|eval\)".*"iteration":\([0-9]*\).*"lm_loss":\([^,}]*\).*/\1 \2 \3/p' "$1/metrics.jsonl" | sort -u; }
# same_losses <name> <name>: training and evaluation losses differ by at most 1e-5.
same_losses() {
  paste -d' ' <(losses "$1") <(losses "$2") | awk -v steps="$steps" '{ d = ($3 - $6) / $3; if (d < 0) d = -d; if (d > max) max = d
      if ($1 != $4 || $2 != $5) exit 1 }
    END { print "losses differ by at most", max + 0; exit !(NR >= steps && max <= 1e-5) }' >difference ||
    fail "$1 and $2: $(cat difference 2>/dev/null)"
  echo "$1 and $2: $(cat difference)"
}

pretrain one_rank 1 || fail "one rank"
layout=(--parallel.tensor_model_parallel_size=2 --parallel.pipeline_model_parallel_size=2 --parallel.sequence_parallel
  --checkpoint.async_save --training.offload_activations=host)
pretrain whole 4 "${layout[@]}" || fail "tp 2 x pp 2"
same_losses one_rank whole
pretrain experts_1 1 --model.num_experts=4 --model.moe_router_topk=2 || fail "experts on one rank"
pretrain experts_4 4 --model.num_experts=4 --model.moe_router_topk=2 --parallel.expert_model_parallel_size=2 \
  --parallel.context_parallel_size=2 --parallel.zero_stage=2 || fail "experts on four ranks"
same_losses experts_1 experts_4

# pretrain_until_killed <name> <ranks> [argument ...]: kills a rank after the first checkpoint.
pretrain_until_killed() {
  local name=$1 training mpirun_process
  pretrain "$@" &
  training=$!
  until [ -e "$name/latest" ] || ! kill -0 "$training" 2>/dev/null; do sleep 0.05; done
  mpirun_process=$(pgrep -P "$training" mpirun || echo "$training")
  kill -KILL "$(pgrep -P "$mpirun_process" megatron_cpp | tail -n 1)" || fail "the run ended before it was killed"
  if wait "$training"; then fail "the run ended before it was killed"; fi
}
# A rank is killed after the first checkpoint; the run continues on the same layout, and on a different layout.
pretrain_until_killed killed 4 "${layout[@]}"
cp -r killed moved
pretrain killed 4 "${layout[@]}" || fail "continuation"
"$MEGATRON_CPP" checkpoint diff whole killed >log 2>&1 || fail "the continued run is not bitwise identical"
echo "killed and continued: bitwise identical"
pretrain moved 4 --parallel.zero_stage=3 --parallel.num_distributed_optimizer_instances=2 || fail "another layout"
same_losses one_rank moved

# CUDA graphs do not change results: a run with graphs is killed, and continues with and without graphs.
zero1=(--parallel.zero_stage=1 --checkpoint.async_save --model.hidden_dropout=0.1)
graphs=(--device.cuda_graph_impl=local --device.cuda_graph_warmup_steps=1)
pretrain plain 2 "${zero1[@]}" || fail "ZeRO 1"
pretrain_until_killed graphs 2 "${zero1[@]}" "${graphs[@]}"
cp -r graphs no_graphs
pretrain graphs 2 "${zero1[@]}" "${graphs[@]}" || fail "continuation with graphs"
pretrain no_graphs 2 "${zero1[@]}" || fail "continuation without graphs"
for name in graphs no_graphs; do
  "$MEGATRON_CPP" checkpoint diff plain $name >log 2>&1 || fail "$name: the run is not bitwise identical"
done
echo "CUDA graphs, killed and continued: bitwise identical"

# evaluate <checkpoint> <device> <ranks> [argument ...]: prints the loss of a text.
evaluate() {
  "${launcher[@]}" -n "$3" "$MEGATRON_CPP" evaluate --load="$1" --text=text.txt --precision=fp32 --device="$2" "${@:4}" \
    2>log | tee evaluation | grep -o '[0-9]*\.[0-9]*' | head -n 1
}
# generate <checkpoint> <device> <ranks> [argument ...]: prints a greedy continuation.
generate() {
  "${launcher[@]}" -n "$3" "$MEGATRON_CPP" generate --load="$1" --prompt=ROMEO: --temperature=0 --max_new_tokens=16 \
    --precision=fp32 --device="$2" "${@:4}" 2>log
}
# matches_cpu <checkpoint> <layout ...>: evaluation and generation on GPUs match the CPU; a layout is ranks and arguments.
matches_cpu() {
  local checkpoint=$1 expected_loss expected_text loss text arguments
  shift
  expected_loss=$(evaluate "$checkpoint" cpu 1)
  expected_text=$(generate "$checkpoint" cpu 1)
  for arguments in "$@"; do
    # shellcheck disable=SC2086  # several arguments
    loss=$(evaluate "$checkpoint" cuda $arguments) text=$(generate "$checkpoint" cuda $arguments)
    awk -v a="$loss" -v b="$expected_loss" 'BEGIN { d = a / b - 1; exit !(a > 0 && d < 1e-4 && d > -1e-4) }' ||
      fail "evaluate $checkpoint on $arguments: $loss, on the CPU $expected_loss"
    [ "$text" = "$expected_text" ] || fail "generate with $checkpoint on $arguments: $text, on the CPU $expected_text"
  done
  echo "$checkpoint: evaluation and generation match the CPU"
}
head -c 3000 "$root/data/tinyshakespeare.txt" >text.txt
matches_cpu whole 1 "2 --parallel.pipeline_model_parallel_size=2" "2 --parallel.tensor_model_parallel_size=2"

# architecture <name> <layout> [argument ...]: a model trains on four GPUs of a layout as on one rank of the CPU; GPUs
# evaluate it and generate text like the CPU.
architecture() {
  local name=$1 options=$2
  shift 2
  pretrain_on cpu "${name}_cpu" 1 "$@" || fail "$name on the CPU"
  # shellcheck disable=SC2086  # several arguments
  pretrain "$name" 4 "$@" $options || fail "$name on four GPUs"
  same_losses "${name}_cpu" "$name"
  matches_cpu "$name" 1
}
rope=(--model.position_embedding_type=rope --model.normalization=RMSNorm --model.activation_func=swiglu
  --model.ffn_hidden_size=64)
architecture gated_delta_net "--parallel.tensor_model_parallel_size=2 --parallel.context_parallel_size=2" "${rope[@]}" \
  --model.linear_attention_freq=[2] --model.linear_num_key_heads=4 --model.linear_num_value_heads=4 \
  --model.linear_key_head_dim=8 --model.linear_value_head_dim=8
architecture kimi_delta_attention "--parallel.tensor_model_parallel_size=2 --parallel.context_parallel_size=2" \
  "${rope[@]}" --model.linear_attention_freq=[2] --model.linear_attention_type=kimi_delta_attention \
  --model.linear_num_key_heads=4 --model.linear_num_value_heads=4 --model.linear_key_head_dim=8 \
  --model.linear_value_head_dim=8
architecture mamba "--parallel.context_parallel_size=2 --parallel.pipeline_model_parallel_size=2" \
  --model.position_embedding_type=none --model.num_layers=4 '--model.hybrid_layer_pattern=M-M*' \
  --model.activation_func=squared_relu --model.mamba_num_groups=2 --model.mamba_num_heads=4 --model.mamba_head_dim=8 \
  --model.mamba_state_dim=16
architecture latent_attention "--parallel.tensor_model_parallel_size=2 --parallel.pipeline_model_parallel_size=2" \
  "${rope[@]}" --model.multi_latent_attention --model.q_lora_rank=24 --model.kv_lora_rank=16 --model.qk_head_dim=8 \
  --model.qk_pos_emb_head_dim=4 --model.v_head_dim=8 --model.mtp_num_layers=1
architecture sinks "--parallel.tensor_model_parallel_size=2 --parallel.context_parallel_size=2" "${rope[@]}" \
  --model.softmax_type=learnable --model.window_size=[7,0] --model.window_attn_skip_freq=[2]
