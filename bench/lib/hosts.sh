# Hosts for benchmarks, which are network namespaces of this machine; to be sourced, with $root. Fills $MEGATRON_CPP, unless
# somebody chose a program, and brings what bench/lib/machine.sh and tests/multi_node/hosts.sh have.
# shellcheck shell=bash disable=SC2154 # root is set there

# shellcheck source=tests/support/namespaces.sh
source "$root/tests/support/namespaces.sh"
# shellcheck source=tests/multi_node/hosts.sh
source "$root/tests/multi_node/hosts.sh"
# shellcheck source=bench/lib/machine.sh
source "$root/bench/lib/machine.sh"
chosen_program=${MEGATRON_CPP:-}
export MEGATRON_CPP=${MEGATRON_CPP:-$root/build/release/megatron_cpp}

# limit_link <host> <megabits>: what it sends. The burst lets packets of 64 KiB go as they are: cut into small ones here, not by
# a network card, they take a quarter of each core from the ranks. A larger one would let as much pass at once after a pause.
limit_link() { on_host "$1" tc qdisc add dev eth0 root tbf rate "$2mbit" burst 72kb latency 100ms; }

# run_in_namespaces <seconds> <"tool ..."> <script> <argument ...>: returns where hosts can be made; elsewhere it runs the script
# there, which needs these tools, for so long at most, and exits.
run_in_namespaces() {
  [ -z "$scratch" ] || return 0
  [ -n "$chosen_program" ] || "$root/scripts/build.sh" release megatron_cpp >/dev/null
  # shellcheck disable=SC2034,SC2086 # in_namespaces reads it; words
  reason=$(why_no_namespaces $2)
  in_namespaces "$1" "$(realpath "$3")" "${@:4}"
}
