#!/usr/bin/env bash
# Measures how much of the exchange of tokens between experts is hidden by overlap_moe_expert_parallel_comm: two ranks
# on two network namespaces on this host, joined by a link with limited bandwidth and a delay (bench/lib/delayed_link.py).
# Each has half of the experts. Runs alternate. Needs root.
#
#   bench/expert_overlap.sh [--rounds=N] [--megabits=N] [--delay_ms=N] [--microbatches=N] [option of megatron_cpp bench step ...]
#
# Prints JSON lines on standard output. Prints on standard error the medians of the seconds of a step and of the seconds
# in which a rank waits for the exchange, with and without overlap, and on an unlimited network.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=bench/lib/hosts.sh
source "$root/bench/lib/hosts.sh"
run_in_namespaces 3000 "ssh dropbear tc python3" "$0" "$@"

rounds=3
megabits=400
delay_ms=1
microbatches=8
# shellcheck source=bench/lib/arguments.sh
source "$root/bench/lib/arguments.sh"
read_options rounds megabits delay_ms microbatches -- "$@"
cd "$scratch"
results=$scratch/results
start_linked_hosts 1

# run <network> <name> <overlap: true or false> <option ...>
run() {
  local line
  link_hosts "$1"
  line=$(on_host a mpirun -n 2 --bind-to none --hostfile hostfile --allow-run-as-root "$MEGATRON_CPP" bench step \
    "$root/bench/moe_14m.toml" --json --device.num_threads=1 --model.num_experts=8 --model.moe_router_topk=2 \
    --model.moe_ffn_hidden_size=768 --model.moe_router_force_load_balancing=true --model.vocab_size=2048 \
    --parallel.expert_model_parallel_size=2 --training.micro_batch_size=4 \
    --training.global_batch_size=$((8 * microbatches)) --repeats=3 --warmup=1 \
    --parallel.overlap_moe_expert_parallel_comm="$3" "${options[@]}" | grep '^{')
  echo "{\"expert_overlap\": \"$2\", \"network\": \"$1\", \"result\": $line}" | tee -a "$results"
}

environment_json "\"megabits\": $megabits" "\"delay_ms\": $delay_ms" "\"microbatches\": $microbatches"
for ((round = 0; round < rounds; ++round)); do
  run fast unlimited false
  run slow serial false
  run slow overlapped true
done

# Extracts name, seconds per step, and seconds of waiting in the group that exchanges tokens.
members "$results" | awk -F'\t' '
  $1 == "expert_overlap" { which = $2 }
  $1 == "step_s" { step = $2 }
  $1 == "ep" { exposed = $2; print which, step, exposed }' |
  sort -k1,1 -k2,2g | awk "$median_of"'
  function flush() {
    if (!n) return
    step[which] = median_of(steps, n)
    exposed[which] = median_of_any(waits, n)
    printf "%-10s step %.3f s, of which %.3f s wait for the exchange of tokens\n", which, step[which], exposed[which]
  }
  $1 != which { flush(); which = $1; n = 0 }
  { steps[++n] = $2; waits[n] = $3 }
  END {
    flush()
    printf "overlap hides %.2f of the waits and shortens the step by %.2f\n", 1 - exposed["overlapped"] / exposed["serial"],
           1 - step["overlapped"] / step["serial"]
  }' >&2
