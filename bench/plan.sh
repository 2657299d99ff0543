#!/usr/bin/env bash
# How well `plan` predicts what steps take on this machine: calibrates it for 1, 2 and 4 ranks, predicts the steps of nine layouts of
# GPT-2 14M with eight samples from that alone, and measures them, in turn. JSON lines on standard output; on standard error a table of
# measured (median over the rounds) and predicted seconds, the mean and the largest error, and the places of the fastest.
#   bench/plan.sh [--rounds=N] [--program=PATH] [--calibration=FOLDER] [--section.key=value ...]
# FOLDER keeps the calibrations: files that are there already are not measured again.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=5
program=
calibration=
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options rounds program calibration -- "$@"
build_program
# shellcheck source=bench/lib/machine.sh
source bench/lib/machine.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
calibration=${calibration:-$work}
mkdir -p "$calibration"
results=$work/results

# Ranks of threads that together are the cores of the machine; four ranks take turns on two.
threads_of() { [ "$1" -ge "$(nproc)" ] && echo 1 || echo $(($(nproc) / $1)); }

# A layout a line: name, ranks, options.
layouts="one_rank 1 --training.micro_batch_size=4
tp2 2 --training.micro_batch_size=4 --parallel.tensor_model_parallel_size=2
dp2 2 --training.micro_batch_size=4
pp2 2 --training.micro_batch_size=1 --parallel.pipeline_model_parallel_size=2
cp2 2 --training.micro_batch_size=4 --parallel.context_parallel_size=2
dp2_zero3 2 --training.micro_batch_size=2 --parallel.zero_stage=3
dp2_recompute 2 --training.micro_batch_size=4 --training.recompute_granularity=full
tp2_dp2 4 --training.micro_batch_size=4 --parallel.tensor_model_parallel_size=2 --parallel.sequence_parallel=true
pp2_dp2 4 --training.micro_batch_size=1 --parallel.pipeline_model_parallel_size=2 --parallel.pipeline_schedule=zb-h1"

for ranks in 1 2 4; do
  [ -e "$calibration/$ranks.toml" ] && continue
  launch_ranks $ranks --bind-to none
  "${launch[@]}" "$program" plan calibrate --out="$calibration/$ranks.toml" --num_threads="$(threads_of $ranks)" >&2
done

# shellcheck disable=SC2119
machine_json | tee "$results"
for ((round = 0; round < rounds; ++round)); do
  while read -r name ranks layout; do
    # shellcheck disable=SC2206 # words
    arguments=($layout --training.global_batch_size=8 --device.num_threads="$(threads_of "$ranks")" "${options[@]}")
    launch_ranks "$ranks" --bind-to none
    measured=$(bench_json step bench/gpt2_14m.toml "${launch[@]}" -- "${arguments[@]}" </dev/null)
    predicted=$("$program" plan bench/gpt2_14m.toml --hardware="$calibration/$ranks.toml" --world_size="$ranks" --predict --json \
      "${arguments[@]}")
    echo "{\"layout\": \"$name\", \"measured\": $measured, \"predicted\": $predicted}" | tee -a "$results"
  done <<<"$layouts"
done

# layout, seconds measured and predicted, a line; then a table and what it comes to.
sed -nE 's/.*"layout": "([^"]*)", "measured".*"step_s":([^,}]*).*"predicted".*"step_s":([^,}]*).*/\1 \2 \3/p' "$results" |
  sort -k1,1 -k2,2g | awk '
    function flush() {
      if (!n) return
      ++count; measured[count] = seconds[int((n + 1) / 2)]; predicted[count] = p
      off = p / measured[count] - 1
      printf "%-14s %8.4f s measured (%.4f to %.4f) %8.4f s predicted %+6.1f %%\n", name, measured[count], seconds[1], seconds[n], p, 100 * off
      size = off < 0 ? -off : off
      sum += size; if (size > worst) worst = size
      if (count == 1 || measured[count] < measured[best]) { best = count; fastest = name }
    }
    $1 != name { flush(); name = $1; n = 0 }
    { seconds[++n] = $2; p = $3 }
    END {
      flush()
      place = 1
      least = predicted[best]
      for (i = 1; i <= count; ++i) {
        if (predicted[i] < predicted[best]) ++place
        if (predicted[i] < least) least = predicted[i]
      }
      printf "mean error %.1f %%, largest %.1f %%; the fastest, %s, is in place %d of those predicted, %.1f %% above the first\n",
        100 * sum / count, 100 * worst, fastest, place, 100 * (predicted[best] / least - 1)
    }' >&2
