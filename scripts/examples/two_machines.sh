#!/usr/bin/env bash
# Trains on two machines with two ranks each: scripts/examples/two_machines.sh node1 node2
# Both need this folder at this path with the same build (a shared file system does), with the data of scripts/quickstart.sh,
# and an ssh from here to either that asks nothing. Machines with several networks: export OMPI_MCA_btl_tcp_if_include and
# OMPI_MCA_oob_tcp_if_include with the interface to use.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 2 ] || { echo "usage: scripts/examples/two_machines.sh MACHINE MACHINE [--section.key=value ...]" >&2 && exit 2; }

mkdir -p runs/two_machines
printf '%s slots=2\n' "$1" "$2" >runs/two_machines/hosts
shift 2

# Turn one of them off: the other goes on with both its ranks, and from the next restart on with all four.
exec scripts/launch.sh configs/quickstart_2_ranks.toml --hostfile runs/two_machines/hosts --training.micro_batch_size=8 \
  --checkpoint.save=runs/two_machines/checkpoints --checkpoint.save_interval=50 "$@"
