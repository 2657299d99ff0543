#!/usr/bin/env bash
# usage: run.sh MEGATRON_CPP
# Trains with data and checkpoints in the S3 server moto, which verifies signatures, in the Python named by S3_PYTHON
# (default: python3).
set -euo pipefail
python=${S3_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "SKIPPED: $python is missing"; exit 77; }
folder=$(cd "$(dirname "$0")" && pwd)
exec "$python" "$folder/check.py" "$1" "$folder/../.."
