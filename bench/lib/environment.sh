# Describes the environment in results and starts ranks on this host; to be sourced.
# shellcheck shell=bash disable=SC2034,SC2154 # launch is read, and program is set, by the caller

# cpu_name: prints name, family and model, because virtual processors of different families can have the same name.
cpu_name() {
  local field words=()
  for field in 'model name' 'cpu family' model; do
    words+=("$(sed -n "s/^${field}[[:space:]]*: //p" /proc/cpuinfo | head -n 1)")
  done
  if [ -n "${words[1]}" ]; then echo "${words[0]}, family ${words[1]}, model ${words[2]}"; else echo "${words[0]}"; fi
}

# revision: prints the revision of the sources, with a + if there are uncommitted changes, or - outside of a clone.
revision() {
  local folder
  folder=$(dirname "${BASH_SOURCE[0]}")
  git -C "$folder" describe --always --dirty=+ --exclude='*' 2>/dev/null || echo -
}

# environment_json [member ...]: prints the first line of results: processor ($processor if it is not the CPU), date,
# revision of the sources (which may differ from that of a chosen program), load of the host, and additional members of
# the benchmark.
# shellcheck disable=SC2120 # many benchmarks have no additional members
environment_json() {
  local processor=${processor:-$(cpu_name)} member more=""
  for member in "$@"; do more+=", $member"; done
  printf '{"processor": "%s", "cores": %s, "date": "%s", "revision": "%s", "load": "%s"%s}\n' "$processor" "$(nproc)" \
    "$(date -u +%FT%TZ)" "$(revision)" "$(cut -d' ' -f1-3 /proc/loadavg)" "$more"
}

# Functions for awk programs: median_of returns the median of v[1] to v[n], which are sorted; median_of_any sorts them
# first.
# shellcheck disable=SC2016 # variables of awk
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
median() { sort -g | awk "$median_of"'{ v[NR] = $1 } END { print median_of(v, NR) }'; } # median of the lines of standard input

# members <results>: prints a line "name<TAB>value" for each member of the JSON objects in this file, in their order.
members() {
  tr ',{}' '\n' <"$1" |
    awk -F'": ?' 'NF > 1 { name = $1; value = $2; sub(/^ *"/, "", name); gsub(/"/, "", value); print name "\t" value }'
}

# relative_speeds <member> <baseline> <results>: prints a line for each model and value of this member: the median over
# the rounds of tokens/s, relative to the result before it whose member is the baseline.
relative_speeds() {
  grep -o "\"model\": \"[^\"]*\", \"$1\": \"[^\"]*\"\|\"tokens_per_s\":[^,]*" "$3" | paste - - | tr -d '"' |
    awk -F'[:,\t]' -v baseline=" $2" '{ if ($4 == baseline) base = $6; else print $2, $4, $6 / base }' |
    sort -k1,1 -k2,2 -k3,3g | awk "$median_of"'
      function flush() { if (n) printf "%-6s %-10s %.3f\n", model, variant, median_of(ratio, n) }
      $1 != model || $2 != variant { flush(); model = $1; variant = $2; n = 0 }
      { ratio[++n] = $3 }
      END { flush() }'
}

# launch_ranks <n> [option of Open MPI ...]: sets `launch`, the launcher words that run a program on n ranks. As root,
# as in many containers, Open MPI needs an option; MPICH has none of these options.
launch_ranks() {
  launch=(mpirun -n "$1")
  mpirun --version | grep -q 'Open MPI' || return 0
  launch+=(--oversubscribe "${@:2}")
  [ "$(id -u)" -ne 0 ] || launch+=(--allow-run-as-root)
}

# bench_json <step|attention|ops> <configuration> [launcher word ...] -- [option ...]: prints the JSON line of a bench
# of $program.
bench_json() {
  local what=$1 configuration=$2 before=()
  shift 2
  while [ "$1" != -- ]; do before+=("$1") && shift; done
  shift
  "${before[@]}" "$program" bench "$what" "$configuration" --json "$@"
}
