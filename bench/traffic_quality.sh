#!/usr/bin/env bash
# Compares training with communication compression with training without it: bits per byte of the held-out text of the
# quick start after 200 iterations on four ranks. Names with _late enable compression halfway, after a common first
# half, so that less of the difference is random. The secondary shard must be bitwise identical.
#
#   bench/traffic_quality.sh [--iterations=N] [--seeds=N,N,...] [--results=FILE] [option of megatron_cpp pretrain ...]
#
# Prints JSON lines on standard output. Fails unless all differences are within 0.5 % (bench/lib/quality.sh describes
# the test).
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=bench/lib/quality.sh
source bench/lib/quality.sh
begin_comparison "$@"
launch_ranks 4 --bind-to none

on_ranks="--training.micro_batch_size=8 --device.num_threads=1"
zero1="$on_ranks --parallel.zero_stage=1"
copy="$on_ranks --parallel.zero_stage=3 --parallel.zero_hpz_partition_size=2"
weights=--parallel.zero_quantized_weights=true
gradients=--parallel.zero_quantized_gradients=true
bf16=--parallel.grad_reduce_dtype=bf16
half=$((iterations / 2))
factors() { echo "--parallel.power_sgd_rank=$1 --parallel.power_sgd_start_iter=$half"; }

# shellcheck disable=SC2034,SC2206 # train_late reads it; words
plain_options=($zero1)
changed=parallel.zero_quantized_weights,parallel.zero_quantized_gradients,parallel.grad_reduce_dtype

# shellcheck disable=SC2046,SC2086 # words
{
  train plain plain $zero1
  train_once "${seeds%%,*}" second_copy plain $copy
  train bf16 plain $zero1 $bf16
  train weights plain $zero1 $weights
  train gradients plain $zero1 $gradients
  train all plain $copy $weights $gradients
  train_late bf16 plain $changed $zero1 $bf16
  train_late weights plain $changed $zero1 $weights
  train_late gradients plain $changed $zero1 $gradients
  train_late all plain $changed $copy $weights $gradients
  train factors_32_late plain $zero1 $(factors 32)
  train factors_64_late plain $zero1 $(factors 64)
}
judge second_copy
