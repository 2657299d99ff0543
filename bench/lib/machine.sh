# What benchmarks say about the machine, and how they start ranks on it; to be sourced.
# shellcheck shell=bash disable=SC2034 # launch is read there

# Family and model too: names of virtual processors are the same for several.
cpu_name() {
  local field words=()
  for field in 'model name' 'cpu family' model; do
    words+=("$(sed -n "s/^${field}[[:space:]]*: //p" /proc/cpuinfo | head -n 1)")
  done
  if [ -n "${words[1]}" ]; then echo "${words[0]}, family ${words[1]}, model ${words[2]}"; else echo "${words[0]}"; fi
}

# Of the sources here, with a + where they differ from what is committed; - outside of a clone.
revision() {
  local folder
  folder=$(dirname "${BASH_SOURCE[0]}")
  git -C "$folder" describe --always --dirty=+ --exclude='*' 2>/dev/null || echo -
}

# machine_json [member ...]: the first line of a benchmark's results: where, on $processor if that is no CPU, and when they were
# taken, of which sources (a program that somebody chose may be of others), what else the machine had to do, and what else the
# benchmark says.
# shellcheck disable=SC2120 # many say nothing else
machine_json() {
  local processor=${processor:-$(cpu_name)} member more=""
  for member in "$@"; do more+=", $member"; done
  printf '{"processor": "%s", "cores": %s, "date": "%s", "revision": "%s", "load": "%s"%s}\n' "$processor" "$(nproc)" \
    "$(date -u +%FT%TZ)" "$(revision)" "$(cut -d' ' -f1-3 /proc/loadavg)" "$more"
}

# For programs of awk, in front of them: the median of v[1] to v[n], which are in order, or are put in order first.
# shellcheck disable=SC2016 # awk expands it
median_of='
  function median_of(v, n) { return (v[int((n + 1) / 2)] + v[int((n + 2) / 2)]) / 2 }
  function median_of_any(v, n,    i, k, value) {
    for (i = 2; i <= n; ++i) {
      value = v[i]
      for (k = i; k > 1 && v[k - 1] > value; --k) v[k] = v[k - 1]
      v[k] = value
    }
    return median_of(v, n)
  }
'
median() { sort -g | awk "$median_of"'{ v[NR] = $1 } END { print median_of(v, NR) }'; } # of the lines of standard input

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
