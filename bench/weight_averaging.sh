#!/usr/bin/env bash
# Compares averages of the weights of a run with a constant learning rate with runs that branch off it and decay.
#
#   bench/weight_averaging.sh [--iterations=N] [option of megatron_cpp pretrain ...]
#
# The run is the quick start with a WSD schedule: N iterations, of which the last 100 decay. Branches decay over the 100
# iterations before N - 200 and N - 100. Needs the data of scripts/quickstart.sh. Prints JSON lines on standard output:
# the evaluations of every run on the held-out text, and the evaluations of averages of checkpoints.
set -euo pipefail
cd "$(dirname "$0")/.."

iterations=500
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options iterations -- "$@"
scripts/build.sh release megatron_cpp >/dev/null
program=build/release/megatron_cpp
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

train() { # <name> [<option> ...]
  local name=$1
  shift
  "$program" pretrain configs/quickstart.toml --training.train_iters="$iterations" --training.eval_interval=50 \
    --training.eval_ema --optimizer.ema_decay=0.98 --optimizer.lr_decay_style=WSD --optimizer.lr_wsd_decay_style=linear \
    --optimizer.lr_wsd_decay_iters=100 --checkpoint.save="$results/$name" --checkpoint.save_interval=25 \
    --checkpoint.keep_latest_k=0 "${options[@]}" "$@" >"$results/$name.log" 2>&1 ||
    { cat "$results/$name.log" >&2 && return 1; }
}

# shellcheck disable=SC2119
environment_json
train stable
for end in $((iterations - 200)) $((iterations - 100)); do
  "$program" checkpoint branch "$results/stable/$(printf 'iter_%07d' $((end - 100)))" "$results/decay_$end" >/dev/null
  train "decay_$end" --optimizer.lr_decay_iters="$end" --training.exit_interval="$end" \
    --checkpoint.allow_changed_keys=optimizer.lr_decay_iters
done
for run in stable "decay_$((iterations - 200))" "decay_$((iterations - 100))"; do
  grep validation "$results/$run/metrics.jsonl" | sed "s/^/{\"run\": \"$run\", \"result\": /; s/\$/}/"
done
for count in 4 8; do # checkpoints before the decay, 25 iterations apart
  checkpoints=()
  for ((i = iterations - 100 - 25 * (count - 1); i <= iterations - 100; i += 25)); do
    checkpoints+=("$results/stable/$(printf 'iter_%07d' "$i")")
  done
  "$program" checkpoint average "${checkpoints[@]}" --save="$results/mean_$count" >/dev/null
  echo "{\"run\": \"mean_of_$count\", \"result\": $("$program" evaluate --load="$results/mean_$count" \
    --text=runs/quickstart/data/valid.txt --json)}"
done
for weights in model ema; do
  echo "{\"run\": \"stable\", \"weights\": \"$weights\", \"result\": $("$program" evaluate --weights="$weights" --json \
    --load="$results/stable/$(printf 'iter_%07d' $((iterations - 100)))" --text=runs/quickstart/data/valid.txt)}"
done
