#!/usr/bin/env bash
# A run on a simulated GPU in which one call fails, an event never completes or a bit flips ends with the documented
# exit code, names the rank and the call, and leaves a checkpoint from which it continues:
# tests/cuda_simulator/faults.sh <megatron_cpp>
set -euo pipefail
program=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export OMP_NUM_THREADS=1

for ((i = 0; i < 400; ++i)); do echo "The line $i of the text says that $((i * 7919 % 1009)) is a number."; done >text.txt
"$program" tokenizer train --input=text.txt --output=tokenizer.model --vocab_size=300 --model_type=bpe >log 2>&1
"$program" preprocess text.txt --output_prefix=text --tokenizer_model=tokenizer.model >log 2>&1

cat >run.toml <<'TOML'
[model]
num_layers = 1
hidden_size = 32
num_attention_heads = 2
seq_length = 32
[training]
micro_batch_size = 2
global_batch_size = 4
train_iters = 6
precision = "bf16"
[data]
train_data_path = ["text_text_document"]
tokenizer_model = "tokenizer.model"
[checkpoint]
save = "checkpoints"
save_interval = 2
[device]
device = "cuda"
TOML

# run <option ...>: trains on one rank, or with ranks=2 on two ranks that share a GPU. Only the first has the fault.
ranks=1
run() {
  if [ $ranks = 1 ]; then
    timeout 120 "$program" pretrain run.toml "$@"
    return
  fi
  local root=()
  [ "$(id -u)" -ne 0 ] || root=(--allow-run-as-root)
  MCPP_SIMULATOR_GPUS=1 timeout 120 mpirun "${root[@]}" --oversubscribe \
    -n 1 "$program" pretrain run.toml "$@" : \
    -n 1 env -u MCPP_SIMULATOR_FAULT "$program" pretrain run.toml "$@"
}

# expect <fault>:<number> <exit code> <text of the error> [option ...]
expect() {
  local fault=$1 expected=$2 text=$3 code=0
  shift 3
  rm -rf checkpoints
  MCPP_SIMULATOR_FAULT=$fault run "$@" >log 2>&1 || code=$?
  if [ "$code" != "$expected" ] || ! grep -q -e "$text" log; then
    echo "$fault, $ranks ranks: exit code $code, expected $expected and \"$text\""
    tail -n 20 log
    exit 1
  fi
  if [ -e checkpoints/latest ] && ! run "$@" >log 2>&1; then
    echo "$fault, $ranks ranks: the run does not continue from its checkpoint"
    tail -n 20 log
    exit 1
  fi
  echo "$fault, $ranks ranks: exit code $code"
}

expect cudaMallocAsync:3 0 'ended at iteration 6'  # the allocation is repeated after the queued work has ended
expect cudaMallocHost:1 12 'cudaMallocHost: out of memory'
expect cudaMemcpyAsync:20 1 'cudaMemcpyAsync'
expect launch:200 1 'kernel launch at .*\.cu:'
expect kernel:200 1 'illegal memory access'
expect cublasLtMatmul:40 1 'cublasLtMatmul for'
graphs=(--device.cuda_graph_impl=local --device.cuda_graph_warmup_steps=1)
expect cudaGraphInstantiate:1 12 'cudaGraphInstantiate: out of memory' "${graphs[@]}"
expect cudaGraphLaunch:3 1 'cudaGraphLaunch' "${graphs[@]}"

# The watchdog detects a GPU that stops working, also on a single rank.
limits=(--parallel.step_timeout_minutes=0.05)
expect event:60 75 '\[rank 0\] .*hang: iteration [0-9]* has shown no activity' "${limits[@]}"

# A bit that flips on the way to one of two replicas, here in initial weights, is found when they compare their weights.
if command -v mpirun >/dev/null; then
  ranks=2
  expect upload:3 75 'rank 1 .*rank 0 .* hold different weights' \
    --training.check_weight_hash_across_dp_replicas_interval=1
fi
