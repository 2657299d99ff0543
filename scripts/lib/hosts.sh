# Functions for the hosts of a hostfile; to be sourced after common.sh.
# shellcheck shell=bash disable=SC2154 # other variables are set in common.sh

probe_seconds=10 # a host that does not answer within this time is excluded

# read_hosts <hostfile>: reads lines "name slots=N" into `hosts` (names in order) and `slots` (name -> number of ranks).
hosts=()
declare -A slots=()
read_hosts() {
  local line number=0 name number_of_slots
  while IFS= read -r line || [ -n "$line" ]; do
    number=$((number + 1))
    line=${line%%#*}
    [[ $line =~ [^[:space:]] ]] || continue
    [[ $line =~ ^[[:space:]]*([^[:space:]]+)[[:space:]]+slots=([1-9][0-9]{0,3})([[:space:]]|$) ]] ||
      fail "$1:$number: expected \"name slots=N\", not: $line"
    name=${BASH_REMATCH[1]} number_of_slots=${BASH_REMATCH[2]}
    # A name that begins with - would be an option of ssh.
    [[ $name =~ ^[[:alnum:]_:][[:alnum:]_.:@%-]*$ ]] || fail "$1:$number: invalid host name: $name"
    [ -n "${slots[$name]:-}" ] || hosts+=("$name")
    slots[$name]=$((${slots[$name]:-0} + number_of_slots))
  done <"$1"
  [ ${#hosts[@]} -gt 0 ] || fail "$1: contains no hosts"
}

# ssh_command: prints the command that runs commands on other hosts: like mpirun, the first installed one of a list
# such as "qrsh : ssh". Fails if none is installed.
ssh_command() {
  local agent agents command
  IFS=: read -r -a agents <<<"${OMPI_MCA_plm_rsh_agent:-ssh -o BatchMode=yes}"
  for agent in "${agents[@]}"; do
    read -r command _ <<<"$agent"
    if [ -n "$command" ] && command -v "$command" >/dev/null; then echo "$agent" && return; fi
  done
  return 1
}
is_this_host() { case $1 in localhost | 127.0.0.1 | "$(uname -n)") ;; *) return 1 ;; esac }

check_ssh() { # fails early, because otherwise no host would answer
  local host
  for host in "${hosts[@]}"; do
    is_this_host "$host" || ssh_command >/dev/null ||
      fail "${OMPI_MCA_plm_rsh_agent:-ssh} is not installed, so $host cannot be reached; the package openssh-client contains ssh"
  done
}

# probe_host <host>: checks that the host answers and has the program. Prints the name that the host has for itself, or
# the reason.
probe_host() {
  local words output code=0
  if is_this_host "$1"; then uname -n && return 0; fi
  read -r -a words <<<"$(ssh_command)"
  output=$(timeout --kill-after=1 "$probe_seconds" "${words[@]}" "$1" "test -x ${program@Q} && uname -n" </dev/null 2>&1) || code=$?
  case $code in
    0) tail -n 1 <<<"$output" | tr -d '\r' && return 0 ;;
    1) echo "$program does not exist there" ;;
    124 | 137) echo "no answer within $probe_seconds s" ;;
    *) echo "$(tr -d '\r' <<<"$output" | tail -n 1), exit code $code" ;;
  esac
  return 1
}

# find_hosts: probes all hosts concurrently. Sets `up` to those that answer, in order, and `down` to the others, each
# with the reason. Sets `host_names` to the name that each host has for itself.
up=() down=()
declare -A host_names=()
find_hosts() {
  local host code pids=() k=0
  for host in "${hosts[@]}"; do
    probe_host "$host" >"$scratch/probe.${#pids[@]}" &
    pids+=($!)
  done
  up=() down=()
  for host in "${hosts[@]}"; do
    wait_for "${pids[k]}"
    if [ "$code" -eq 0 ]; then
      up+=("$host")
      host_names[$host]=$(cat "$scratch/probe.$k")
    else
      down+=("$host ($(cat "$scratch/probe.$k"))")
    fi
    k=$((k + 1))
  done
}

# exclude_slow_hosts <ranks>: moves the hosts in `slow_hosts` from `up` to `down`, as long as the others have slots for
# this number of ranks.
declare -A slow_hosts=()
exclude_slow_hosts() {
  local host kept=() left
  left=$(slots_of "${up[@]}")
  for host in "${up[@]}"; do
    if [ -n "${slow_hosts[${host_names[$host]}]:-}" ] && [ $((left - slots[$host])) -ge "$1" ]; then
      left=$((left - slots[$host]))
      down+=("$host (slow)")
    else
      kept+=("$host")
    fi
  done
  up=("${kept[@]}")
}

# slots_of <host ...>: prints the total number of slots of the hosts.
slots_of() {
  local host sum=0
  for host in "$@"; do sum=$((sum + slots[$host])); done
  echo "$sum"
}

# write_hostfile <host ...>: prints a hostfile of these hosts.
write_hostfile() {
  local host
  for host in "$@"; do echo "$host slots=${slots[$host]}"; done
}
