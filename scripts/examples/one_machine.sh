#!/usr/bin/env bash
# Trains on two ranks of this machine, which share every batch, and starts again when one fails; after scripts/quickstart.sh,
# whose data it uses. More arguments are added: scripts/examples/one_machine.sh --training.train_iters=2000
set -euo pipefail
cd "$(dirname "$0")/../.."

# Try it: in another terminal, kill -9 a rank (pgrep megatron_cpp), or press Ctrl-C here and start it once more.
exec scripts/launch.sh configs/quickstart_2_ranks.toml -n 2 --checkpoint.save=runs/one_machine --checkpoint.save_interval=50 "$@"
