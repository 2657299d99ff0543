#!/usr/bin/env bash
# Compares collectives and messages with those of MPI, on this host or on several network namespaces on it.
#
#   bench/comm.sh [--ranks=N] [--runs=N] [--hosts=N] [--megabits=N] [option of megatron_cpp bench comm ...]
#
#   --hosts=N     number of network namespaces among which the ranks are divided evenly; more than 1 needs root (default 1)
#   --megabits=N  bandwidth of the links between them in Mb/s; 0 = unlimited (default 1000)
#
# Prints one JSON line per run on standard output, and a table of the medians over the runs of MPI's time / our time on
# standard error. Within a run both sides alternate; their medians are reported. On a host with other load, use several
# runs.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

ranks=2
runs=3
hosts=1
megabits=1000
# shellcheck source=bench/lib/arguments.sh
source "$root/bench/lib/arguments.sh"
read_options ranks runs hosts megabits -- "$@"
[ $((ranks % hosts)) -eq 0 ] || { echo "bench/comm.sh: $ranks ranks cannot be divided evenly among $hosts hosts" >&2 && exit 64; }
# shellcheck source=bench/lib/hosts.sh
source "$root/bench/lib/hosts.sh"

# Both functions set `launch`, the words before the program.
on_this_host() {
  "$root/scripts/build.sh" release megatron_cpp >/dev/null
  launch_ranks "$ranks"
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
}
on_hosts() {
  local names=(a b c d e f g h) name cores core=0
  cores=$(nproc)
  names=("${names[@]:0:hosts}")
  cd "$scratch"
  make_network "${names[@]}"
  for name in "${names[@]}"; do
    echo "$name slots=$((ranks / hosts))" >>hostfile
    start_host "$name"
    [ "$ranks" -le "$cores" ] || taskset -p -c "$((core++ % cores))" "${host_pids[$name]}" >/dev/null
    # Uses the common congestion control; with others, transfers of milliseconds vary.
    on_host "$name" ip route change 10.77.0.0/24 dev eth0 src "$(address_of "$name")" congctl cubic
    [ "$megabits" -eq 0 ] || limit_link "$name" "$megabits"
  done
  launch=(on_host a mpirun)
  # With fewer cores than ranks the hosts share cores. Without this setting each host would use all cores, and its
  # waiting ranks would not yield.
  [ "$ranks" -le "$cores" ] || launch=(on_host a taskset -c 0 mpirun --mca mpi_yield_when_idle 1)
  launch+=(-n "$ranks" --bind-to none --hostfile hostfile --allow-run-as-root)
}

if [ "$hosts" -eq 1 ]; then
  on_this_host
else
  run_in_namespaces 3000 "ssh dropbear tc" "$0" "$@"
  on_hosts
fi
results=$scratch/results
members=("\"mpi\": \"$(mpirun --version | head -n 1)\"")
[ "$hosts" -eq 1 ] || members+=("\"hosts\": $hosts" "\"megabits\": $megabits")
environment_json "${members[@]}"
for ((run = 0; run < runs; ++run)); do
  "${launch[@]}" "$MEGATRON_CPP" bench comm --json "${options[@]}" | grep '^{' | tee -a "$results"
done

{
  printf '%-16s %10s %10s %10s\n' operation bytes median best
  grep -o '{"operation":"[a-z_]*","bytes":[0-9]*,"seconds":[^,]*,"mpi_seconds":[^}]*}' "$results" | tr -d '{}"' |
    awk -F'[:,]' '{ print $2, $4, $8 / $6 }' | sort -k1,1 -k2,2n -k3,3g | awk "$median_of"'
      function flush() { if (n) printf "%-16s %10d %10.2f %10.2f\n", name, bytes, median_of(ratio, n), ratio[n] }
      $1 != name || $2 != bytes { flush(); name = $1; bytes = $2; n = 0 }
      { ratio[++n] = $3 }
      END { flush() }'
} >&2
