#!/usr/bin/env bash
# Times collectives and messages against MPI's own on this machine, one JSON line a run on standard output, and the medians
# of the ratios (MPI's time by ours) over the runs as a table on standard error.
#   bench/comm.sh [--ranks=N] [--runs=N] [option of megatron_cpp bench comm ...]
# Inside a run both sides take turns and their medians count. On a machine that others use too, take several runs.
set -euo pipefail
cd "$(dirname "$0")/.."

ranks=2
runs=3
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options ranks runs -- "$@"
scripts/build.sh release megatron_cpp >/dev/null

# shellcheck source=bench/lib/machine.sh
source bench/lib/machine.sh
launch_ranks "$ranks"
results=$(mktemp)
trap 'rm -f "$results"' EXIT
machine_json "\"mpi\": \"$(mpirun --version | head -n 1)\""
for ((run = 0; run < runs; ++run)); do
  "${launch[@]}" build/release/megatron_cpp bench comm --json "${options[@]}" | tee -a "$results"
done

{
  printf '%-16s %10s %10s %10s\n' operation bytes median best
  grep -o '{"operation":"[a-z_]*","bytes":[0-9]*,"seconds":[^,]*,"mpi_seconds":[^}]*}' "$results" | tr -d '{}"' |
    awk -F'[:,]' '{ print $2, $4, $8 / $6 }' | sort -k1,1 -k2,2n -k3,3g | awk '
      function flush() { if (n) printf "%-16s %10d %10.2f %10.2f\n", name, bytes, ratio[int((n + 1) / 2)], ratio[n] }
      $1 != name || $2 != bytes { flush(); name = $1; bytes = $2; n = 0 }
      { ratio[++n] = $3 }
      END { flush() }'
} >&2
