#!/usr/bin/env bash
# Measures how much of the communication of tensor parallelism is hidden by tp_comm_overlap: two ranks with one thread
# each share the layers of a model, with sequence parallelism. They are on one host, or on two network namespaces on
# this host, joined by a link with limited bandwidth. Runs alternate. Needs root.
#
#   bench/tp_overlap.sh [--rounds=N] [--megabits="N ..."] [--model=14m|124m] [option of megatron_cpp bench step ...]
#
#   --megabits  bandwidths of the link in Mb/s; "host" is shared memory on one host
#
# Prints JSON lines on standard output. Prints on standard error, for each bandwidth, the medians of the seconds of a
# step, of the seconds in which a rank communicates and does not compute, and of the share of these in the step.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=bench/lib/hosts.sh
source "$root/bench/lib/hosts.sh"
run_in_namespaces 6000 "ssh dropbear tc" "$0" "$@"

rounds=3
megabits="host 4000"
model=124m
# shellcheck source=bench/lib/arguments.sh
source "$root/bench/lib/arguments.sh"
read_options rounds megabits model -- "$@"
bandwidths=$megabits
cd "$scratch"
results=$scratch/results
start_linked_hosts 1

# run <bandwidth> <name> <overlap: true or false>
run() {
  local line where=()
  if [ "$1" != host ]; then
    where=(--hostfile hostfile)
    for host in a b; do
      on_host "$host" tc qdisc del dev eth0 root 2>/dev/null || true
      limit_link "$host" "$1"
    done
  fi
  line=$(on_host a mpirun -n 2 --bind-to none --oversubscribe "${where[@]}" --allow-run-as-root "$MEGATRON_CPP" bench step \
    "$root/bench/gpt2_$model.toml" --json --device.num_threads=1 --parallel.tensor_model_parallel_size=2 \
    --parallel.sequence_parallel=true --parallel.tp_comm_overlap="$3" "${options[@]}" | grep '^{')
  echo "{\"tp_overlap\": \"$2\", \"network\": \"$1\", \"result\": $line}" | tee -a "$results"
}

environment_json "\"megabits\": \"$bandwidths\""
for ((round = 0; round < rounds; ++round)); do
  for bandwidth in $bandwidths; do
    run "$bandwidth" serial false
    run "$bandwidth" overlapped true
  done
done

# Extracts bandwidth, name, seconds per step, and seconds of communication in the tensor-parallel group.
members "$results" | awk -F'\t' '
  $1 == "tp_overlap" { which = $2 }
  $1 == "network" { speed = $2 }
  $1 == "step_s" { step = $2 }
  $1 == "tp" { print speed, which, step, $2 }' |
  sort -k1,1 -k2,2r | awk "$median_of"'
  function flush() {
    if (!n) return
    printf "%-6s %-10s step %.3f s, of which %.3f s communicate; share %.3f\n", speed, which, median_of_any(steps, n),
           median_of_any(waits, n), median_of_any(shares, n)
  }
  $1 != speed || $2 != which { flush(); speed = $1; which = $2; n = 0 }
  { steps[++n] = $3; waits[n] = $4; shares[n] = $4 / $3 }
  END { flush() }' >&2
