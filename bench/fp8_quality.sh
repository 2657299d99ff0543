#!/usr/bin/env bash
# What fp8 does to a training: held-out bits per byte of the quick start after so many steps, in bf16, and with products in fp8, both
# formats, from the first step or (_late) from halfway on. JSON lines on standard output; fails unless all are within half a
# percent of bf16 (bench/lib/quality.sh says how that is judged).
#   bench/fp8_quality.sh [--iterations=N] [--seeds=N,N,...] [--results=FILE] [option of megatron_cpp pretrain ...]
set -euo pipefail
cd "$(dirname "$0")/.."

# shellcheck source=bench/lib/quality.sh
source bench/lib/quality.sh
begin_comparison "$@"

train bf16 bf16
train hybrid bf16 --training.fp8=hybrid
train e4m3 bf16 --training.fp8=e4m3
train_late hybrid bf16 training.fp8 --training.fp8=hybrid
train_late e4m3 bf16 training.fp8 --training.fp8=e4m3
judge
