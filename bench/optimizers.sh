#!/usr/bin/env bash
# Compares Muon with AdamW: the quick start with both, with the same model, text, samples, seed, learning rate, weight
# decay and number of iterations, at the same time on one thread each.
#
#   bench/optimizers.sh [--iterations=N] [option of megatron_cpp pretrain ...]
#
# Needs the data of scripts/quickstart.sh. Prints JSON lines on standard output: the metrics of every logged iteration
# and the evaluations on the held-out text. Prints the last lines on standard error.
set -euo pipefail
cd "$(dirname "$0")/.."

iterations=300
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options iterations -- "$@"
scripts/build.sh release megatron_cpp >/dev/null
program=build/release/megatron_cpp
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# Only the number of iterations, over which the learning rate decays, differs from the quick start.
train() { # <name> <configuration>
  "$program" pretrain "$2" --training.train_iters="$iterations" --training.eval_interval=50 --device.num_threads=1 \
    --checkpoint.save="$results/$1" --logging.metrics_path="$results/$1.jsonl" "${options[@]}" >"$results/$1.log" 2>&1 ||
    { cat "$results/$1.log" >&2 && return 1; }
}

train adam configs/quickstart.toml &
adam=$!
train muon configs/quickstart_muon.toml
wait "$adam"

# shellcheck disable=SC2119
environment_json
for name in adam muon; do
  sed "s/^/{\"optimizer\": \"$name\", \"result\": /; s/\$/}/" "$results/$name.jsonl"
  echo "$name:" >&2
  tail -n 2 "$results/$name.jsonl" >&2
done
