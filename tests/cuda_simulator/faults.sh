#!/usr/bin/env bash
# A training on a simulated GPU in which one call fails ends with the documented exit code, names the call, and leaves a
# checkpoint from which it continues: tests/cuda_simulator/faults.sh <megatron_cpp>
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

# expect <call>:<number> <exit code> <text of the error>
expect() {
  rm -rf checkpoints
  local code=0
  MCPP_SIMULATOR_FAULT=$1 timeout 120 "$program" pretrain run.toml >log 2>&1 || code=$?
  if [ "$code" != "$2" ] || ! grep -q -e "$3" log; then
    echo "$1: exit code $code, expected $2 and \"$3\""
    tail -n 20 log
    exit 1
  fi
  if [ -e checkpoints/latest ] && ! "$program" pretrain run.toml >log 2>&1; then
    echo "$1: the training does not continue from its checkpoint"
    tail -n 20 log
    exit 1
  fi
  echo "$1: exit code $code"
}

expect cudaMallocAsync:3 0 'ended at iteration 6'  # the allocation is repeated after the queued work has ended
expect cudaMallocHost:1 12 'cudaMallocHost: out of memory'
expect cudaMemcpyAsync:20 1 'cudaMemcpyAsync'
expect launch:200 1 'kernel launch at .*\.cu:'
expect kernel:200 1 'illegal memory access'
expect cublasLtMatmul:40 1 'cublasLtMatmul for'
