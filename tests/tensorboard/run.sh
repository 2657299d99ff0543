#!/usr/bin/env bash
# usage: run.sh MEGATRON_CPP
# Compares event files, as TensorBoard reads them, with metrics.jsonl. TENSORBOARD_PYTHON names the Python with TensorBoard
# (default: python3).
set -euo pipefail
python=${TENSORBOARD_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "SKIPPED: $python is missing"; exit 77; }
folder=$(cd "$(dirname "$0")" && pwd)
exec "$python" "$folder/check.py" "$1" "$folder/../.."
