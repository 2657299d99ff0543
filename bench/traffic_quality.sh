#!/usr/bin/env bash
# What less traffic does to a training: the quick start's model and text for 200 iterations on four ranks, plain and with each
# way to send less, and the bits per byte of the text that was held out. Those that end in _late begin halfway, so that what
# came before has the same bits, and less of the difference is chance. Fails unless all are within half a percent of plain
# (bench/lib/quality.sh says how that is judged) and the second copy changes nothing. JSON lines on standard output.
#   bench/traffic_quality.sh [--iterations=N] [--seeds=N,N,...] [--results=FILE] [option of megatron_cpp pretrain ...]
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
