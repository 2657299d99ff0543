#!/usr/bin/env bash
# Submits the run of scripts/examples/two_hosts.sh to Slurm: two nodes with two ranks each and a time limit of half an
# hour. Three minutes before the limit the job saves and requeues itself, until training is complete.
#
#   scripts/examples/slurm.sh [--section.key=value ...]
#   squeue --me; tail -f megatron_cpp-*.out
set -euo pipefail
cd "$(dirname "$0")/../.."

# Add options that your cluster requires (--partition, --account, --gpus-per-node), or set SBATCH_PARTITION and
# SBATCH_ACCOUNT.
exec sbatch --nodes=2 --ntasks-per-node=2 --time=00:30:00 scripts/slurm_pretrain.sbatch configs/quickstart_2_ranks.toml \
  --training.micro_batch_size=8 --checkpoint.save=runs/slurm --checkpoint.save_interval=50 "$@"
