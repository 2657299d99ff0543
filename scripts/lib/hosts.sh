# The machines of a hostfile; to be sourced after common.sh.
# shellcheck shell=bash disable=SC2154 # what is not set here is in common.sh

probe_seconds=10 # within which a machine has to answer

# read_hosts <hostfile>: fills `hosts` (names in order) and `slots` (name -> ranks), from lines "name slots=N".
hosts=()
declare -A slots=()
read_hosts() {
  local line number=0 name number_of_slots
  while IFS= read -r line || [ -n "$line" ]; do
    number=$((number + 1))
    line=${line%%#*}
    [[ $line =~ [^[:space:]] ]] || continue
    [[ $line =~ ^[[:space:]]*([^[:space:]]+)[[:space:]]+slots=([1-9][0-9]{0,3})([[:space:]]|$) ]] ||
      fail "$1:$number: not of the form \"name slots=N\": $line"
    name=${BASH_REMATCH[1]} number_of_slots=${BASH_REMATCH[2]}
    # ssh would take a name that begins with - for an option.
    [[ $name =~ ^[[:alnum:]_:][[:alnum:]_.:@%-]*$ ]] || fail "$1:$number: no name of a machine: $name"
    [ -n "${slots[$name]:-}" ] || hosts+=("$name")
    slots[$name]=$((${slots[$name]:-0} + number_of_slots))
  done <"$1"
  [ ${#hosts[@]} -gt 0 ] || fail "$1: names no machine"
}

# The command that reaches a machine: the one that mpirun starts ranks with, the first of its list, "qrsh : ssh", that is
# installed. Fails without one.
ssh_command() {
  local agent agents command
  IFS=: read -r -a agents <<<"${OMPI_MCA_plm_rsh_agent:-ssh -o BatchMode=yes}"
  for agent in "${agents[@]}"; do
    read -r command _ <<<"$agent"
    if [ -n "$command" ] && command -v "$command" >/dev/null; then echo "$agent" && return; fi
  done
  return 1
}
is_here() { case $1 in localhost | 127.0.0.1 | "$(uname -n)") ;; *) return 1 ;; esac }

# Without it no machine would ever answer.
check_ssh() {
  local host
  for host in "${hosts[@]}"; do
    is_here "$host" || ssh_command >/dev/null ||
      fail "${OMPI_MCA_plm_rsh_agent:-ssh} is not installed: $host cannot be reached; scripts/install_dependencies.sh installs ssh"
  done
}

# Does it answer, and does it have the program? Prints why not.
probe_host() {
  local words said code=0
  if is_here "$1"; then return 0; fi
  read -r -a words <<<"$(ssh_command)"
  said=$(timeout --kill-after=1 "$probe_seconds" "${words[@]}" "$1" "test -x ${program@Q}" </dev/null 2>&1) || code=$?
  case $code in
    0) return 0 ;;
    1) echo "has no $program" ;;
    124 | 137) echo "no answer within $probe_seconds s" ;;
    *) echo "$(tr -d '\r' <<<"$said" | tail -n 1), exit code $code" ;;
  esac
  return 1
}

# find_hosts: fills `up` with those hosts that answer, in order, and `down` with the others, each with the reason. All are
# asked at once.
up=() down=()
find_hosts() {
  local host code pids=() k=0
  for host in "${hosts[@]}"; do
    probe_host "$host" >"$scratch/probe.${#pids[@]}" &
    pids+=($!)
  done
  up=() down=()
  for host in "${hosts[@]}"; do
    wait_for "${pids[k]}"
    if [ "$code" -eq 0 ]; then up+=("$host"); else down+=("$host ($(cat "$scratch/probe.$k"))"); fi
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
