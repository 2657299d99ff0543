#!/usr/bin/env bash
# What smaller moments and gradients do to a training: held-out bits per byte of the quick start after so many steps, with moments in fp32,
# bf16 and a byte, and with gradients in bf16, also of steps of 16 microbatches, whose sum is rounded each time (from halfway on). JSON lines on standard output; fails unless all are within half a percent of
# fp32 (bench/lib/quality.sh says how that is judged).
#   bench/offload_quality.sh [--iterations=N] [--seeds=N,N,...] [--results=FILE] [option of megatron_cpp pretrain ...]
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
