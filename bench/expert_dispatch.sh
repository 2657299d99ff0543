#!/usr/bin/env bash
# Measures training.moe_fp8_dispatch: two ranks on two network namespaces on this host, joined by a link with limited
# bandwidth and a delay (bench/lib/delayed_link.py). Each has half of the experts, which use a recipe in fp8, and they
# exchange tokens in bf16 or fp8, with and without overlap. Runs alternate. Needs root.
#
#   bench/expert_dispatch.sh [--rounds=N] [--megabits=N] [--delay_ms=N] [--microbatches=N] [--recipe=blockwise|mxfp8]
#                            [option of megatron_cpp bench step ...]
#
# Prints JSON lines on standard output. Prints on standard error, for each network and overlap, the medians of the seconds
# of a step and of the seconds in which a rank waits for the exchange, and the megabytes that a rank sends to experts.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=bench/lib/hosts.sh
source "$root/bench/lib/hosts.sh"
run_in_namespaces 3000 "ssh dropbear tc python3" "$0" "$@"

rounds=3
megabits=400
delay_ms=1
microbatches=4
recipe=blockwise
# shellcheck source=bench/lib/arguments.sh
source "$root/bench/lib/arguments.sh"
read_options rounds megabits delay_ms microbatches recipe -- "$@"
cd "$scratch"
results=$scratch/results
start_linked_hosts

# run <network> <name> <dispatch in fp8: true or false> <overlap: true or false>
run() {
  local line
  line=$(on_host a mpirun -n 2 --bind-to none --hostfile hostfile --allow-run-as-root "$MEGATRON_CPP" bench step \
    "$root/bench/moe_14m.toml" --json --device.num_threads=1 --model.num_experts=8 --model.moe_router_topk=2 \
    --model.moe_ffn_hidden_size=768 --model.moe_router_force_load_balancing=true --model.vocab_size=2048 \
    --parallel.expert_model_parallel_size=2 --training.micro_batch_size=4 --training.precision=bf16 \
    --training.global_batch_size=$((8 * microbatches)) --repeats=3 --warmup=1 \
    --training.low_precision="[{modules = '*.experts.*', recipe = '$recipe', wgrad = 'bf16'}]" \
    --training.moe_fp8_dispatch="$3" --parallel.overlap_moe_expert_parallel_comm="$4" "${options[@]}" | grep '^{')
  echo "{\"expert_dispatch\": \"$2\", \"network\": \"$1\", \"result\": $line}" | tee -a "$results"
}

environment_json "\"megabits\": $megabits" "\"delay_ms\": $delay_ms" "\"microbatches\": $microbatches" \
  "\"recipe\": \"$recipe\""
for ((round = 0; round < rounds; ++round)); do
  for network in fast slow; do
    link_hosts "$network"
    run "$network" "${network}_bf16" false false
    run "$network" "${network}_fp8" true false
  done
  run slow slow_overlapped_bf16 false true
  run slow slow_overlapped_fp8 true true
done

# Extracts name, seconds per step, bytes that a rank sends to others, and seconds of waiting for them.
tr ',{}' '\n' <"$results" | awk -F'": ?' '
  { name = $1; gsub(/[" ]/, "", name); value = $2; gsub(/"/, "", value) }
  name == "expert_dispatch" { which = value }
  name == "step_s" { step = value }
  name == "epall_to_all" { sent = value }
  name == "ep" { print which, step, sent, value }' |
  sort -k1,1 -k2,2g | awk "$median_of"'
  function flush() {
    if (n) printf "%-20s step %.3f s, waits %.3f s, sends %.1f MB\n", which, median_of(steps, n),
                  median_of_any(waits, n), sent / 1e6
  }
  $1 != which { flush(); which = $1; n = 0 }
  { steps[++n] = $2; sent = $3; waits[n] = $4 }
  END { flush() }' >&2
