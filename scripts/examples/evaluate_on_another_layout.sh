#!/usr/bin/env bash
# A checkpoint does not remember on how many ranks it was saved: trains a little on two ranks that share each layer, goes on
# with two that share each batch, and measures perplexity in one process and, as for a model that fits no single one, on two
# ranks that hold half of it each. After scripts/quickstart.sh, whose data it uses.
set -euo pipefail
cd "$(dirname "$0")/../.."
save=runs/another_layout
train() {
  scripts/pretrain.sh configs/quickstart_2_ranks.toml -n 2 --checkpoint.save=$save \
    --training.train_iters=20 --optimizer.lr_warmup_iters=5 "$@"
}

train --parallel.tensor_model_parallel_size=2 --training.exit_interval=10
train --parallel.zero_stage=3
evaluate=(build/release/megatron_cpp evaluate --load=$save --text=runs/quickstart/data/valid.txt)
"${evaluate[@]}"
as_root=()
[ "$(id -u)" -ne 0 ] || as_root=(--allow-run-as-root)
mpirun -n 2 --bind-to none --oversubscribe "${as_root[@]}" "${evaluate[@]}" --parallel.pipeline_model_parallel_size=2
