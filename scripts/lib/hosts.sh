# The machines of a hostfile; to be sourced after common.sh.
# shellcheck shell=bash disable=SC2154 # what is not set here is in common.sh

probe_seconds=10 # within which a machine has to answer

# read_hosts <hostfile>: fills `hosts` (names in order) and `slots` (name -> ranks), from lines "name slots=N".
hosts=()
declare -A slots=()
read_hosts() {
  local line number=0 name
  while IFS= read -r line || [ -n "$line" ]; do
    number=$((number + 1))
    line=${line%%#*}
    [[ $line =~ [^[:space:]] ]] || continue
    [[ $line =~ ^[[:space:]]*([^[:space:]]+)[[:space:]]+slots=([1-9][0-9]{0,3})([[:space:]]|$) ]] ||
      fail "$1:$number: not of the form \"name slots=N\": $line"
    name=${BASH_REMATCH[1]}
    [ -n "${slots[$name]:-}" ] || hosts+=("$name")
    slots[$name]=$((${slots[$name]:-0} + BASH_REMATCH[2]))
  done <"$1"
  [ ${#hosts[@]} -gt 0 ] || fail "$1: names no machine"
}

# Does it answer, and does it have the program? Its ssh is the one that mpirun starts ranks with.
probe_host() {
  case $1 in localhost | 127.0.0.1 | "$(uname -n)") return 0 ;; esac
  # shellcheck disable=SC2086 # the agent may be a command with arguments
  timeout --kill-after=1 "$probe_seconds" ${OMPI_MCA_plm_rsh_agent:-ssh -o BatchMode=yes} "$1" \
    test -x "$program" </dev/null >/dev/null 2>&1
}

# find_hosts: fills `up` with those hosts that answer, in order, and `down` with the others. All are asked at once.
up=() down=()
find_hosts() {
  local host pids=() k=0
  for host in "${hosts[@]}"; do
    probe_host "$host" &
    pids+=($!)
  done
  up=() down=()
  for host in "${hosts[@]}"; do
    if wait "${pids[k]}"; then up+=("$host"); else down+=("$host"); fi
    k=$((k + 1))
  done
}

# slots_of <host ...>: their sum.
slots_of() {
  local host sum=0
  for host in "$@"; do sum=$((sum + slots[$host])); done
  echo "$sum"
}

# write_hostfile <host ...>
write_hostfile() {
  local host
  for host in "$@"; do echo "$host slots=${slots[$host]}"; done
}
