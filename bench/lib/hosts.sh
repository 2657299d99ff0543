# Hosts for benchmarks: network namespaces on one physical host. To be sourced with $root set. Sets $MEGATRON_CPP unless it
# is set, and includes bench/lib/environment.sh and tests/multi_node/hosts.sh.
# shellcheck shell=bash disable=SC2154 # root, megabits and delay_ms are set there

# shellcheck source=tests/support/namespaces.sh
source "$root/tests/support/namespaces.sh"
# shellcheck source=tests/multi_node/hosts.sh
source "$root/tests/multi_node/hosts.sh"
# shellcheck source=bench/lib/environment.sh
source "$root/bench/lib/environment.sh"
chosen_program=${MEGATRON_CPP:-}
export MEGATRON_CPP=${MEGATRON_CPP:-$root/build/release/megatron_cpp}

# limit_link <host> <megabits>: limits the send bandwidth of the host. The burst is just large enough for packets of 64
# KiB. Splitting them in software would take a quarter of each core, and a larger burst would exceed the bandwidth after
# each pause.
limit_link() { on_host "$1" tc qdisc add dev eth0 root tbf rate "$2mbit" burst 72kb latency 100ms; }

# start_linked_hosts <ranks>: starts hosts a and b and, in the current folder, writes `hostfile` with this number of ranks
# for each.
start_linked_hosts() {
  local host
  printf 'a slots=%d\nb slots=%d\n' "$1" "$1" >hostfile
  make_network a b
  for host in a b; do start_host "$host"; done
}

cable= # process of the delayed link
# link_hosts <slow|fast>: limits the link between hosts a and b to $megabits and delays it by $delay_ms, or removes both.
link_hosts() {
  local host
  for host in a b; do
    on_host "$host" tc qdisc del dev eth0 root 2>/dev/null || true
    [ "$1" = fast ] || limit_link "$host" "$megabits"
    if [ "$1" = fast ]; then ip link set "to_$host" master hub; else ip link set "to_$host" nomaster; fi
  done
  [ -z "$cable" ] || kill "$cable"
  cable=
  [ "$1" = fast ] || { python3 "$root/bench/lib/delayed_link.py" to_a to_b "$delay_ms" & cable=$!; }
}

# run_in_namespaces <seconds> <"tool ..."> <script> <argument ...>: inside the namespaces, returns. Outside, builds the
# program, runs the script in namespaces with a time limit, and exits. The script needs these tools.
run_in_namespaces() {
  [ -z "$scratch" ] || return 0
  [ -n "$chosen_program" ] || "$root/scripts/build.sh" release megatron_cpp >/dev/null
  # shellcheck disable=SC2034,SC2086 # in_namespaces reads it; words
  reason=$(why_no_namespaces $2)
  in_namespaces "$1" "$(realpath "$3")" "${@:4}"
}
