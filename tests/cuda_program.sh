#!/usr/bin/env bash
# tests/cuda_program.sh <megatron_cpp built with CUDA>: must start on hosts without a GPU and report that none can be used.
set -euo pipefail
cd "$(dirname "$0")/.."
program=$1
[ -x "$program" ] || { echo "$program does not exist" && exit 77; }
"$program" --version
if nvidia-smi -L >/dev/null 2>&1; then exit 0; fi
code=0
message=$("$program" bench step configs/gpt2_124m.toml --device.device=cuda 2>&1) || code=$?
echo "$message"
[ $code -eq 2 ] || { echo "exit code $code instead of 2" && exit 1; }
[[ $message == *"device.device: no GPU can be used"*"use \"cpu\""* ]] || { echo "the message differs" && exit 1; }
