#!/usr/bin/env bash
# Shows that checkpoints can be loaded with any layout: trains with tensor parallelism on two ranks, resumes with ZeRO
# stage 3 on two ranks, and measures perplexity in one process and with two pipeline stages, as for a model that does
# not fit on one device. Uses the data of scripts/quickstart.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."
save=runs/another_layout
train() {
  scripts/pretrain.sh configs/quickstart_2_ranks.toml -n 2 --checkpoint.save=$save \
    --training.train_iters=20 --optimizer.lr_warmup_iters=5 "$@"
}

train --parallel.tensor_model_parallel_size=2 --training.exit_interval=10
train --parallel.zero_stage=3
evaluate=(build/release/megatron_cpp evaluate --load="$save" --text=runs/quickstart/data/valid.txt)
"${evaluate[@]}"
as_root=()
[ "$(id -u)" -ne 0 ] || as_root=(--allow-run-as-root)
mpirun -n 2 --bind-to none --oversubscribe "${as_root[@]}" "${evaluate[@]}" --parallel.pipeline_model_parallel_size=2
