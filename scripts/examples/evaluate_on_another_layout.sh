#!/usr/bin/env bash
# A checkpoint does not remember on how many ranks it was saved: trains a little on two ranks that share each layer, goes on
# with two that share each batch, and measures perplexity in one process. After scripts/quickstart.sh, whose data it uses.
set -euo pipefail
cd "$(dirname "$0")/../.."
save=runs/another_layout
train() {
  scripts/pretrain.sh configs/quickstart_2_ranks.toml -n 2 --checkpoint.save=$save \
    --training.train_iters=20 --optimizer.lr_warmup_iters=5 "$@"
}

train --parallel.tensor_model_parallel_size=2 --training.exit_interval=10
train --parallel.zero_stage=3
build/release/megatron_cpp evaluate --load=$save --text=runs/quickstart/data/valid.txt
