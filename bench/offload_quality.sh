#!/usr/bin/env bash
# Compares training with low-precision optimizer state with fp32: bits per byte of the held-out text of the quick start
# with moments in bf16 and uint8, and with gradients in bf16, also with 16 microbatches per step, whose sum is rounded
# each time (from halfway on).
#
#   bench/offload_quality.sh [--iterations=N] [--seeds=N,N,...] [--results=FILE] [option of megatron_cpp pretrain ...]
#
# Prints JSON lines on standard output. Fails unless all differences are within 0.5 % (bench/lib/quality.sh describes
# the test).
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=bench/lib/quality.sh
source bench/lib/quality.sh
begin_comparison "$@"

moments() { echo "--optimizer.exp_avg_dtype=$1 --optimizer.exp_avg_sq_dtype=$1"; }
gradients="--optimizer.main_grads_dtype=bf16 --parallel.zero_stage=2"
# shellcheck disable=SC2046,SC2086 # words
{
  train fp32 fp32
  train bf16 fp32 $(moments bf16)
  train uint8 fp32 $(moments uint8)
  train bf16_grads fp32 $gradients
  train uint8_bf16_grads fp32 $(moments uint8) $gradients
  plain_options=(--training.micro_batch_size=2 --parallel.zero_stage=2)
  train fp32_of_16 fp32_of_16 "${plain_options[@]}"
  train_late bf16_grads_of_16 fp32_of_16 optimizer.main_grads_dtype "${plain_options[@]}" --optimizer.main_grads_dtype=bf16
}
judge
