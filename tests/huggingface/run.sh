#!/usr/bin/env bash
# usage: run.sh MEGATRON_CPP [check.py|imports.py|quantized.py]
# Compares exports or imports with transformers in the Python named by HUGGINGFACE_PYTHON (default: python3).
set -euo pipefail
python=${HUGGINGFACE_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "SKIPPED: $python is missing"; exit 77; }
folder=$(cd "$(dirname "$0")" && pwd)
exec "$python" "$folder/${2:-check.py}" "$1" "$folder/../.."
