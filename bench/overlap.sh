#!/usr/bin/env bash
# Measures how much communication between hosts is hidden behind computation: two ranks on two network namespaces on
# this host, joined by a link with limited bandwidth and a delay (bench/lib/delayed_link.py). Runs alternate. Needs
# root.
#
#   bench/overlap.sh [--rounds=N] [--megabits=N] [--delay_ms=N] [--parts="zero pipelines"] [option of megatron_cpp bench step ...]
#
#   --parts  "zero": ZeRO 1 and 3 with and without overlap; seconds of a step that a rank waits for gradients and weights.
#            "pipelines": additional seconds that a rank waits for messages, and that a step takes, relative to an unlimited network,
#            compared with the transfer time of all messages in both directions.
#            Or individual ones: zero1, zero3, gpipe, 1f1b or interleaved.
#
# Prints JSON lines on standard output, and medians and exposed shares on standard error.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=bench/lib/hosts.sh
source "$root/bench/lib/hosts.sh"
run_in_namespaces 3000 "ssh dropbear tc python3" "$0" "$@"

rounds=3
megabits=400
delay_ms=1
parts="zero pipelines"
# shellcheck source=bench/lib/arguments.sh
source "$root/bench/lib/arguments.sh"
read_options rounds megabits delay_ms parts -- "$@"
cd "$scratch"
results=$scratch/results
start_linked_hosts 1

# 12 layers of hidden size 384: 21M elements, with small embeddings, so that most communication can be hidden.
microbatches=8
# run <network> <name> <option ...>
run() {
  local line
  link_hosts "$1"
  line=$(on_host a mpirun -n 2 --bind-to none --hostfile hostfile --allow-run-as-root "$MEGATRON_CPP" bench step \
    "$root/bench/gpt2_14m.toml" --json --device.num_threads=1 --model.num_layers=12 --model.vocab_size=2048 "${@:3}" "${options[@]}" |
    grep '^{')
  echo "{\"overlap\": \"$2\", \"network\": \"$1\", \"result\": $line}" | tee -a "$results"
}
zero() { # <stage> <name> <overlap: true or false>
  run slow "$2" --training.micro_batch_size=8 --training.global_batch_size=16 --parallel.zero_stage="$1" \
    --parallel.ddp_bucket_size=1000000 --parallel.overlap_grad_reduce="$3" --parallel.overlap_param_gather="$3"
}
# is_selected <part> <group>
is_selected() { [[ " $parts " == *" $1 "* || " $parts " == *" $2 "* ]]; }
pipeline() { # <schedule> <option ...>
  local speed
  for speed in fast slow; do
    run "$speed" "$1" --parallel.pipeline_model_parallel_size=2 --parallel.pipeline_schedule="$1" --training.micro_batch_size=4 \
      --training.global_batch_size=$((4 * microbatches)) "${@:2}"
  done
}

environment_json "\"megabits\": $megabits" "\"delay_ms\": $delay_ms"
for ((round = 0; round < rounds; ++round)); do
  for stage in 1 3; do
    is_selected "zero$stage" zero || continue
    zero $stage zero$stage true
    zero $stage zero$stage-blocking false
  done
  for schedule in gpipe 1f1b interleaved; do
    is_selected "$schedule" pipelines || continue
    chunks=()
    [ "$schedule" != interleaved ] || chunks=(--parallel.num_virtual_stages_per_pipeline_rank=2)
    pipeline "$schedule" "${chunks[@]}"
  done
done

# Extracts name, network, seconds per step, seconds in data-parallel groups, bytes of messages, and seconds of waiting
# for messages.
members "$results" | awk -F'\t' '
  $1 == "overlap" { which = $2 }
  $1 == "network" { speed = $2 }
  $1 == "step_s" { step = $2 }
  $1 == "pp send" || $1 == "pp_backward send" { sent += $2 }
  $1 == "dp_shard" { exposed = $2 }
  $1 == "pp" || $1 == "pp_backward" { waited += $2 }
  $1 == "activations_bytes_estimated" { print which, speed, step, exposed + 0, sent + 0, waited + 0; sent = exposed = waited = 0 }' |
  sort -k1,1 -k2,2 -k3,3g | awk -v megabits="$megabits" -v delay="$delay_ms" "$median_of"'
  function flush() {
    if (!n) return
    step[which, speed] = median_of(steps, n)
    exposed[which] = median_of_any(shared, n)
    wait[which, speed] = median_of_any(waits, n)
  }
  $1 != which || $2 != speed { flush(); which = $1; speed = $2; n = 0 }
  { steps[++n] = $3; shared[n] = $4; bytes[$1] = $5; waits[n] = $6 }
  END {
    flush()
    for (stage = 1; stage <= 3; stage += 2) {
      name = "zero" stage; blocking = name "-blocking"
      if (name in exposed) printf "ZeRO %d: %.3f s exposed of %.3f s (%.2f); steps of %.3f and %.3f s\n", stage, exposed[name], exposed[blocking],
             exposed[name] / exposed[blocking], step[name, "slow"], step[blocking, "slow"]
    }
    for (which in bytes) if ((which, "fast") in step) {
      # Rank 0 receives as many bytes as it sends.
      alone = 2 * bytes[which] * 8 / (megabits * 1e6)
      longer = wait[which, "slow"] - wait[which, "fast"]
      printf "%-12s waits %.3f s longer than on a fast network, steps take %.3f s longer; transfer time of its messages %.3f s, %.2f of it exposed\n",
             which, longer, step[which, "slow"] - step[which, "fast"], alone, longer / alone
    }
  }' >&2
