#!/usr/bin/env bash
# Compares training with fp8 GEMMs (both formats, from the first step or, _late, from halfway on) with training in
# bf16: bits per byte of the held-out text of the quick start.
#
#   bench/fp8_quality.sh [--iterations=N] [--seeds=N,N,...] [--results=FILE] [option of megatron_cpp pretrain ...]
#
# Prints JSON lines on standard output. Fails unless all differences are within 0.5 % (bench/lib/quality.sh describes
# the test).
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
