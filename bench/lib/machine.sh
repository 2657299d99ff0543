# What benchmarks say about the machine, and how they start ranks on it; to be sourced.
# shellcheck shell=bash disable=SC2034 # launch is read there

cpu_name() { sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1; }

# machine_json [member ...]: the first line of a benchmark's results: where, on $processor if that is no CPU, and when they were
# taken, and what else it says.
# shellcheck disable=SC2120 # many say nothing else
machine_json() {
  local processor=${processor:-$(cpu_name)} member more=""
  for member in "$@"; do more+=", $member"; done
  printf '{"processor": "%s", "cores": %s, "date": "%s"%s}\n' "$processor" "$(nproc)" "$(date -u +%FT%TZ)" "$more"
}

# launch_ranks <n> [option of Open MPI ...]: fills `launch`, the words before a program that runs on so many ranks. Containers
# often run as root, where Open MPI asks for a word; MPICH knows none of these options.
launch_ranks() {
  launch=(mpirun -n "$1")
  mpirun --version | grep -q 'Open MPI' || return 0
  launch+=(--oversubscribe "${@:2}")
  [ "$(id -u)" -ne 0 ] || launch+=(--allow-run-as-root)
}

# bench_json <step|attention> <configuration> [word before the program ...] -- [option ...]: the JSON line of that bench of $program.
bench_json() {
  local what=$1 configuration=$2 before=()
  shift 2
  while [ "$1" != -- ]; do before+=("$1") && shift; done
  shift
  "${before[@]}" "$program" bench "$what" "$configuration" --json "$@"
}
