#!/usr/bin/env bash
# usage: run.sh MEGATRON_CPP
# Asks TensorBoard's own reader what it finds in event files, of the Python that TENSORBOARD_PYTHON names; without it, of
# python3.
set -euo pipefail
python=${TENSORBOARD_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "SKIPPED: there is no $python"; exit 77; }
folder=$(cd "$(dirname "$0")" && pwd)
exec "$python" "$folder/check.py" "$1" "$folder/../.."
