#!/usr/bin/env bash
# Trains on several real hosts: network namespaces on one physical host, each with an ssh server, two with two ranks and
# one that only starts them. Hosts fail and cables are disconnected, and scripts/launch.sh must complete every run
# correctly.
#   tests/multi_node/run.sh [test ...]; exit code 77, with the reason, if namespaces are not available
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
export MEGATRON_CPP=${MEGATRON_CPP:-$root/build/release/megatron_cpp}
# shellcheck source=tests/support/namespaces.sh
source "$root/tests/support/namespaces.sh"
# shellcheck source=tests/support/small_training.sh
source "$root/tests/support/small_training.sh"
# shellcheck source=tests/multi_node/hosts.sh
source "$root/tests/multi_node/hosts.sh"

if [ -z "$scratch" ]; then
  reason=$(why_no_namespaces ssh dropbear)
  in_namespaces 280 "$0" "$@"
fi

# A lost host must be detected within seconds, instead of the half minute suitable for real networks.
export OMPI_MCA_oob_tcp_keepalive_time=2 OMPI_MCA_oob_tcp_keepalive_intvl=1 OMPI_MCA_oob_tcp_keepalive_probes=2

# start_run <name>: runs launch.sh on the head in the background.
start_run() {
  name=$1
  on_host head "$root/scripts/launch.sh" run.toml --hostfile hostfile --checkpoint.save="$scratch/$name" --max_backoff=1 \
    >"$name.out" 2>"$name.err" </dev/null &
  run=$!
}
# end_run <exit code>: waits for the run and checks its exit code.
end_run() {
  local got=0
  wait "$run" || got=$?
  [ "$got" -eq "$1" ] || report_failure "exit code $got, not $1"
}
signal_run() { kill "-$1" "$(pgrep -P "$(pgrep -P "$run")")"; } # a shell, nsenter, launch.sh

report_failure() {
  echo "FAILED $name: $*"
  tail -n 60 "$name.out" || true
  cat "$name.err" || true
  exit 1
}
# until_true <what> <command ...>: waits up to a minute until the command succeeds.
until_true() {
  local what=$1 end=$((SECONDS + 60))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || report_failure "$what: not within a minute"
    kill -0 "$run" 2>/dev/null || report_failure "$what: the run has ended"
    sleep 0.05
  done
}
logged() { grep -q -- "$1" "$name/launch.log" 2>/dev/null; }
expect_log() { logged "$1" || report_failure "launch.log has no line: $1"; }
has_checkpoint() { [ -e "$name/latest" ]; }
has_message() { grep -q -- "$1" "$name.err"; }
has_output() { grep -q -- "$1" "$name.out"; }
ranks_on() { on_host "$1" pgrep -c megatron_cpp || true; }
has_no_ranks() { [ "$(ranks_on "$1")" = 0 ]; }
expect_identical() {
  "$MEGATRON_CPP" checkpoint diff single "$name" >diff.txt || true
  grep -q ' tensors compared, 0 differ' diff.txt || report_failure "weights differ from one host: $(cat diff.txt)"
}
losses() { grep '"type":"train"' "$1/metrics.jsonl" | sed 's/.*"iteration":\([0-9]*\).*"lm_loss":\([0-9.e+-]*\).*/\1 \2/'; }
# A different number of data-parallel ranks changes the order of summation.
expect_near_losses() {
  paste -d ' ' <(losses single) <(losses "$name") | awk -v n="$iterations" '
    function abs(x) { return x < 0 ? -x : x }
    NF != 4 || $1 != NR || $3 != NR || abs($2 - $4) > 1e-4 * $2 { print "iteration " NR ": " $0; bad = 1 }
    END { exit bad || NR != n }' || report_failure "losses differ from one host"
}

test_plain() { # two hosts are bitwise identical to one
  start_run plain
  end_run 0
  expect_log 'attempt=1 .* ranks=4 hosts=a,b resumed.* code=0'
  expect_identical
}

test_layouts() { # each kind of communication between hosts is bitwise identical to one host
  local keys key options
  for keys in "zero_stage=3 tensor_model_parallel_size=1" "ddp_bucket_size=20000 tensor_model_parallel_size=1" \
    "num_distributed_optimizer_instances=2 tensor_model_parallel_size=1 zero_stage=2" "pipeline_model_parallel_size=2" \
    "tensor_model_parallel_size=4"; do
    name=$keys
    options=(--training.train_iters=6 --checkpoint.save_interval=6)
    for key in $keys; do options+=("--parallel.$key"); done
    rm -rf one many
    "$root/scripts/pretrain.sh" run.toml -n 4 "${options[@]}" --checkpoint.save=one >"$name.out" 2>"$name.err" || report_failure "does not train"
    on_host a "$root/scripts/pretrain.sh" run.toml -n 4 --hostfile hostfile "${options[@]}" --checkpoint.save="$scratch/many" \
      >"$name.out" 2>"$name.err" </dev/null || report_failure "does not train on two hosts"
    "$MEGATRON_CPP" checkpoint diff one many >diff.txt || true
    grep -q ' tensors compared, 0 differ' diff.txt || report_failure "weights differ from one host: $(cat diff.txt)"
  done
}

test_stop() { # SIGTERM saves on all hosts, and the next start resumes
  start_run stop
  until_true "a checkpoint" has_checkpoint
  signal_run TERM
  end_run 85
  start_run stop
  end_run 0
  expect_log 'resumed=.*iter_0.* code=0'
  expect_identical
}

test_processes_die() { # all ranks of a host die, but not the host: the same layout resumes bitwise identically
  start_run processes_die
  until_true "a checkpoint" has_checkpoint
  on_host b pkill -KILL megatron_cpp
  end_run 0
  expect_log 'attempt=1 .* ranks=4 .* code=75 next="restart"'
  expect_log 'attempt=2 .* ranks=4 .* resumed=.*iter_0.* code=0'
  expect_identical
}

test_host_dies() { # the host with rank 0 is lost permanently: the other continues alone
  start_run host_dies
  until_true "a checkpoint" has_checkpoint
  kill_host a
  end_run 0
  expect_log 'attempt=1 .* ranks=4 hosts=a,b resumed.* code=75 next="restart"'
  expect_log 'attempt=2 .* ranks=2 hosts=b resumed=.*iter_0.* code=0'
  expect_near_losses
  start_host a
}

test_cable_is_pulled() { # it is detected, the run continues without the host, and the next start uses it again
  start_run cable_is_pulled
  until_true "a checkpoint" has_checkpoint
  unplug_host b
  until_true "the loss is noticed" logged 'attempt=1 .* ranks=4 hosts=a,b resumed.* code=75 next="restart"'
  until_true "the ranks beyond the cable end" has_no_ranks b
  until_true "a start without it" has_message 'continuing with 2 of 4 ranks on a'
  plug_host b
  until_true "a checkpoint to go on from" has_output 'resuming from .*iter_0'
  on_host a pkill -KILL megatron_cpp
  end_run 0
  expect_log 'attempt=2 .* ranks=2 hosts=a resumed.* code=75 next="restart"'
  expect_log 'attempt=3 .* ranks=4 hosts=a,b resumed.* code=0'
  expect_near_losses
}

cd "$scratch"
make_training >training.log
printf 'a slots=2\nb slots=2\n' >hostfile
make_network head a b
for host in head a b; do start_host "$host"; done
name=single
"$root/scripts/pretrain.sh" run.toml -n 4 --checkpoint.save=single >single.out 2>single.err || report_failure "does not train"
[ $# -gt 0 ] || set -- plain layouts stop processes_die host_dies cable_is_pulled
for test in "$@"; do
  began=$SECONDS
  "test_$test"
  echo "passed: $test ($((SECONDS - began)) s)"
done
