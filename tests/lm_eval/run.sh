#!/usr/bin/env bash
# usage: run.sh MEGATRON_CPP
# Compares scores of likelihood tasks with lm-evaluation-harness. LM_EVAL_PYTHON names the Python with it (default: python3).
set -euo pipefail
python=${LM_EVAL_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "SKIPPED: $python is missing"; exit 77; }
folder=$(cd "$(dirname "$0")" && pwd)
exec "$python" "$folder/check.py" "$1" "$folder/../.."
