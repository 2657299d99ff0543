#!/usr/bin/env bash
# Measures the exchange of tokens between experts on two network namespaces on this host, joined by a link with limited
# bandwidth and a delay (bench/lib/delayed_link.py). Runs alternate. Needs root.
#
#   bench/expert_dispatch.sh [--compare=fp8|dispatchers] [--rounds=N] [--megabits=N] [--delay_ms=N] [--microbatches=N]
#                            [--recipe=blockwise|mxfp8] [--repeats=N] [--warmup=N]
#                            [option of megatron_cpp bench step ...]
#
# --compare=fp8: tokens in bf16 and with training.moe_fp8_dispatch, with and without overlap, between one rank per host;
# two of 8 experts per token. --compare=dispatchers: parallel.moe_token_dispatcher_type alltoall and hierarchical,
# between two ranks per host; four of 8 experts per token.
#
# Prints JSON lines on standard output. Prints on standard error, for each run, the median seconds of a step, the median
# seconds in which a rank waits for the exchange, the megabytes per step that a rank sends in exchanges, and the
# megabytes per step that cross the link from one host to the other. The latter exclude the startup, whose traffic a
# run with one step measures.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=bench/lib/hosts.sh
source "$root/bench/lib/hosts.sh"
run_in_namespaces 3000 "ssh dropbear tc python3" "$0" "$@"

compare=fp8
rounds=3
megabits=400
delay_ms=1
microbatches=4
recipe=blockwise
repeats=3
warmup=1
# shellcheck source=bench/lib/arguments.sh
source "$root/bench/lib/arguments.sh"
read_options compare rounds megabits delay_ms microbatches recipe repeats warmup -- "$@"
case $compare in
fp8) ranks=2 topk=2 ;;
dispatchers) ranks=4 topk=4 ;;
*) echo "expert_dispatch.sh: --compare=$compare: use fp8 or dispatchers" >&2 && exit 2 ;;
esac
((repeats + warmup > 1)) || { echo "expert_dispatch.sh: needs more than one step to measure bytes" >&2 && exit 2; }
cd "$scratch"
results=$scratch/results
start_linked_hosts $((ranks / 2))

# shellcheck disable=SC2016 # variables of awk
bytes_sent() { on_host a awk '$1 == "eth0:" { print $10 }' /proc/net/dev; }
# bench_steps <repeats> <warmup> <option ...>: sets `line` to the result and `bytes` to what host a has sent.
bench_steps() {
  local before
  before=$(bytes_sent)
  line=$(on_host a mpirun -n "$ranks" --bind-to none --hostfile hostfile --allow-run-as-root "$MEGATRON_CPP" bench step \
    "$root/bench/moe_14m.toml" --json --device.num_threads=1 --model.num_experts=8 --model.moe_router_topk="$topk" \
    --model.moe_ffn_hidden_size=768 --model.moe_router_force_load_balancing=true --model.vocab_size=2048 \
    --parallel.expert_model_parallel_size="$ranks" --training.micro_batch_size=4 --training.precision=bf16 \
    --training.global_batch_size=$((4 * ranks * microbatches)) --repeats="$1" --warmup="$2" "${@:3}" "${options[@]}" |
    grep '^{')
  bytes=$(($(bytes_sent) - before))
}
declare -A one_step # bytes of a run with one step, by variant
# run <network> <variant> <option ...>
run() {
  local line bytes
  if [ -z "${one_step[$2]:-}" ]; then
    bench_steps 1 0 "${@:3}"
    one_step[$2]=$bytes
  fi
  bench_steps "$repeats" "$warmup" "${@:3}"
  bytes=$(((bytes - one_step[$2]) / (repeats + warmup - 1)))
  echo "{\"expert_dispatch\": \"$1_$2\", \"network\": \"$1\", \"link_bytes\": $bytes, \"result\": $line}" |
    tee -a "$results"
}
# run_fp8 <network> <variant> <dispatch in fp8: true or false> <overlap: true or false>
run_fp8() {
  run "$1" "$2" --training.low_precision="[{modules = '*.experts.*', recipe = '$recipe', wgrad = 'bf16'}]" \
    --training.moe_fp8_dispatch="$3" --parallel.overlap_moe_expert_parallel_comm="$4"
}

environment_json "\"compare\": \"$compare\"" "\"megabits\": $megabits" "\"delay_ms\": $delay_ms" \
  "\"microbatches\": $microbatches" "\"recipe\": \"$recipe\""
for ((round = 0; round < rounds; ++round)); do
  for network in fast slow; do
    link_hosts "$network"
    if [ "$compare" = fp8 ]; then
      run_fp8 "$network" bf16 false false
      run_fp8 "$network" fp8 true false
    else
      for dispatcher in alltoall hierarchical; do
        run "$network" "$dispatcher" --parallel.moe_token_dispatcher_type=$dispatcher
      done
    fi
  done
  if [ "$compare" = fp8 ]; then
    run_fp8 slow overlapped_bf16 false true
    run_fp8 slow overlapped_fp8 true true
  fi
done

# Extracts name, seconds per step, bytes that a rank sends to others, bytes on the link, and seconds of waiting for the
# exchange. Within a node, hierarchical dispatch has a group of its own.
members "$results" | awk -F'\t' '
  $1 == "expert_dispatch" { if (which) print which, step, sent, link, waits; which = $2; sent = waits = 0 }
  $1 == "link_bytes" { link = $2 }
  $1 == "step_s" { step = $2 }
  $1 == "ep all_to_all" || $1 == "ep_node all_to_all" { sent += $2 }
  $1 == "ep" || $1 == "ep_node" { waits += $2 }
  END { print which, step, sent, link, waits }' |
  sort -k1,1 -k2,2g | awk "$median_of"'
  function flush() {
    if (n) printf "%-20s step %.3f s, waits %.3f s, sends %.1f MB, on the link %.1f MB\n", which, median_of(steps, n),
                  median_of_any(waits, n), sent / 1e6, link / 1e6
  }
  $1 != which { flush(); which = $1; n = 0 }
  { steps[++n] = $2; sent = $3; link = $4; waits[n] = $5 }
  END { flush() }' >&2
