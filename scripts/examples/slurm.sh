#!/usr/bin/env bash
# Hands the training of scripts/examples/two_machines.sh to Slurm: two nodes with two ranks each, for half an hour at a time.
# Three minutes before the time is over the job saves and queues itself again, until the training is done.
#   squeue --me; tail -f megatron_cpp-*.out
set -euo pipefail
cd "$(dirname "$0")/../.."

# What a cluster wants to know besides (--partition, --account, --gpus-per-node) goes to sbatch, or into its variables:
# SBATCH_PARTITION, SBATCH_ACCOUNT.
exec sbatch --nodes=2 --ntasks-per-node=2 --time=00:30:00 scripts/slurm_pretrain.sbatch configs/quickstart_2_ranks.toml \
  --training.micro_batch_size=8 --checkpoint.save=runs/slurm --checkpoint.save_interval=50 "$@"
