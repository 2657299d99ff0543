#!/usr/bin/env bash
# Trains with data parallelism on two ranks of this host and restarts after failures. Uses the data of
# scripts/quickstart.sh.
#
#   scripts/examples/one_host.sh [--section.key=value ...]
set -euo pipefail
cd "$(dirname "$0")/../.."

# To test the recovery, kill -9 a rank in a second terminal (pgrep megatron_cpp), or press Ctrl-C here and start it
# again.
exec scripts/launch.sh configs/quickstart_2_ranks.toml -n 2 --checkpoint.save=runs/one_host --checkpoint.save_interval=50 "$@"
