#!/usr/bin/env bash
# Trains on two hosts with two ranks each.
#
#   scripts/examples/two_hosts.sh HOST HOST [--section.key=value ...]
#
# Both hosts need this folder at the same path with the same build, for example on a shared file system, including the
# data of scripts/quickstart.sh, and ssh without a password from here. With several networks, set
# OMPI_MCA_btl_tcp_if_include and OMPI_MCA_oob_tcp_if_include to the interface to use.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -ge 2 ] || { echo "usage: scripts/examples/two_hosts.sh HOST HOST [--section.key=value ...]" >&2 && exit 2; }

mkdir -p runs/two_hosts
printf '%s slots=2\n' "$1" "$2" >runs/two_hosts/hosts
shift 2

# If one host is switched off, the run continues with the two ranks of the other one, and with all four after a later
# restart.
exec scripts/launch.sh configs/quickstart_2_ranks.toml --hostfile runs/two_hosts/hosts --training.micro_batch_size=8 \
  --checkpoint.save=runs/two_hosts/checkpoints --checkpoint.save_interval=50 "$@"
