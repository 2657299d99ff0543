#!/usr/bin/env bash
# Measures how accurately `plan` predicts steps on this host. Each round calibrates for the number of ranks, predicts
# steps of GPT-2 14M with eight samples for nine layouts from that alone, and measures them.
#
#   bench/plan.sh [--layouts=ranks|offload] [--rounds=N] [--program=PATH] [--calibration=FOLDER] [--disk=FOLDER] [--section.key=value ...]
#
#   --layouts=offload     layouts that offload states, weights or activations to host memory or to the disk
#   --disk=FOLDER         the folder on the disk for these layouts (default: a temporary folder)
#   --calibration=FOLDER  stores calibrations; existing calibrations are reused
#
# Prints JSON lines on standard output. On standard error, a table of measured and predicted seconds (medians over the
# rounds) and memory, the mean and the largest error, and the predicted rank of the fastest layout.
set -euo pipefail
cd "$(dirname "$0")/.."

layouts=ranks
rounds=5
program=
calibration=
disk=
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options layouts rounds program calibration disk -- "$@"
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
calibration=${calibration:-$work}
disk=${disk:-$work}
mkdir -p "$calibration"
results=$work/results

# threads_of <ranks>: prints the threads per rank such that all ranks together use all cores, at least 1.
threads_of() { [ "$1" -ge "$(nproc)" ] && echo 1 || echo $(($(nproc) / $1)); }

# One layout per line: name, ranks, options.
case $layouts in
  ranks) rows="one_rank 1 --training.micro_batch_size=4
tp2 2 --training.micro_batch_size=4 --parallel.tensor_model_parallel_size=2
dp2 2 --training.micro_batch_size=4
pp2 2 --training.micro_batch_size=1 --parallel.pipeline_model_parallel_size=2
cp2 2 --training.micro_batch_size=4 --parallel.context_parallel_size=2
dp2_zero3 2 --training.micro_batch_size=2 --parallel.zero_stage=3
dp2_recompute 2 --training.micro_batch_size=4 --training.recompute_granularity=full
tp2_dp2 4 --training.micro_batch_size=4 --parallel.tensor_model_parallel_size=2 --parallel.sequence_parallel=true
pp2_dp2 4 --training.micro_batch_size=1 --parallel.pipeline_model_parallel_size=2 --parallel.pipeline_schedule=zb-h1" ;;
  offload) rows="in_memory 1 --training.micro_batch_size=4
state_in_host 1 --training.micro_batch_size=4 --optimizer.offload=host
state_on_disk 1 --training.micro_batch_size=4 --optimizer.offload=file --optimizer.offload_folder=$disk
half_state_on_disk 1 --training.micro_batch_size=4 --optimizer.offload=file --optimizer.offload_folder=$disk \
  --optimizer.offload_fraction=0.5 --optimizer.offload_segment_size=524288
activations_in_host 1 --training.micro_batch_size=4 --training.offload_activations=host
activations_on_disk 1 --training.micro_batch_size=4 --training.offload_activations=file --optimizer.offload_folder=$disk
dp2_zero1_state_on_disk 2 --training.micro_batch_size=4 --parallel.zero_stage=1 --optimizer.offload=file \
  --optimizer.offload_folder=$disk
dp2_zero3_weights_in_host 2 --training.micro_batch_size=4 --parallel.zero_stage=3 --optimizer.offload_params=host
dp2_zero3_all_on_disk 2 --training.micro_batch_size=4 --parallel.zero_stage=3 --optimizer.offload=file \
  --optimizer.offload_params=file --training.offload_activations=file --optimizer.offload_folder=$disk" ;;
  *) echo "$0: --layouts=$layouts: must be ranks or offload" >&2 && exit 2 ;;
esac

# The speed of a shared host varies, so each round calibrates just before it predicts and measures.
calibrate() { # <round> <ranks>
  local out=$calibration/$1-$2.toml
  [ ! -e "$out" ] || return 0
  launch_ranks "$2" --bind-to none
  "${launch[@]}" "$program" plan calibrate --out="$out" --num_threads="$(threads_of "$2")" --rounds=1 --offload_folder="$disk" \
    </dev/null >&2
}

# shellcheck disable=SC2119
environment_json | tee "$results"
for ((round = 0; round < rounds; ++round)); do
  while read -r name ranks layout; do
    calibrate "$round" "$ranks"
    # shellcheck disable=SC2206 # words
    arguments=($layout --training.global_batch_size=8 --device.num_threads="$(threads_of "$ranks")" "${options[@]}")
    launch_ranks "$ranks" --bind-to none
    measured=$(bench_json step bench/gpt2_14m.toml "${launch[@]}" -- "${arguments[@]}" </dev/null)
    predicted=$("$program" plan bench/gpt2_14m.toml --hardware="$calibration/$round-$ranks.toml" --world_size="$ranks" --predict \
      --json "${arguments[@]}")
    echo "{\"layout\": \"$name\", \"measured\": $measured, \"predicted\": $predicted}" | tee -a "$results"
  done <<<"$rows"
done

# Extracts layout, measured and predicted seconds, measured and predicted bytes per line, then prints a table and a
# summary.
sed -nE 's/.*"layout": "([^"]*)", "measured".*"step_s":([^,}]*).*"largest_tensors_bytes":([^,}]*).*"predicted".*"step_s":([^,}]*).*"memory_bytes":([^,}]*).*/\1 \2 \4 \3 \5/p' "$results" |
  sort -k1,1 -k2,2g | awk "$median_of"'
    function flush() {
      if (!n) return
      ++count; measured[count] = median_of(seconds, n); p = predicted[count] = median_of_any(planned_seconds, n)
      off = p / measured[count] - 1
      printf "%-26s %8.4f s measured (%.4f to %.4f) %8.4f s predicted %+6.1f %%; %7.1f MiB measured %7.1f predicted %+5.1f %%\n", name, measured[count], seconds[1], seconds[n], p, 100 * off, bytes / 2^20, planned / 2^20, 100 * (planned / bytes - 1)
      size = off < 0 ? -off : off
      sum += size; if (size > worst) worst = size
      if (count == 1 || measured[count] < measured[best]) { best = count; fastest = name }
    }
    $1 != name { flush(); name = $1; n = 0 }
    { seconds[++n] = $2; planned_seconds[n] = $3; bytes = $4; planned = $5 }
    END {
      flush()
      position = 1
      min = predicted[best]
      for (i = 1; i <= count; ++i) {
        if (predicted[i] < predicted[best]) ++position
        if (predicted[i] < min) min = predicted[i]
      }
      printf "mean error %.1f %%, largest %.1f %%; the fastest layout, %s, is number %d of the predictions, %.1f %% slower than the first\n",
        100 * sum / count, 100 * worst, fastest, position, 100 * (predicted[best] / min - 1)
    }' >&2
