#!/usr/bin/env bash
# Tests scripts/slurm_pretrain.sbatch, and preprocess with srun, under a real Slurm. Its daemons run in their own
# namespaces, for one node that is configured as larger than it is, and leave nothing behind.
#   tests/slurm/run.sh; exit code 77, with the reason, if Slurm is missing or namespaces are not available
# Needs Debian's packages slurmctld, slurmd, slurm-client and slurm-wlm-basic-plugins. They need not be installed:
# SLURM_ROOT may name a folder where `dpkg -x` has unpacked them.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
export MEGATRON_CPP=${MEGATRON_CPP:-$root/build/release/megatron_cpp}
slurm=${SLURM_ROOT:-}
export PATH=$slurm/usr/bin:$slurm/usr/sbin:$PATH LD_LIBRARY_PATH=$slurm/usr/lib/x86_64-linux-gnu/slurm-wlm
scratch=${MCPP_SCRATCH:-} # set for the shell inside the namespaces
# shellcheck source=tests/support/namespaces.sh
source "$root/tests/support/namespaces.sh"
# shellcheck source=tests/support/small_training.sh
source "$root/tests/support/small_training.sh"

if [ -z "$scratch" ]; then
  reason=$(why_no_namespaces slurmctld-wlm slurmd-wlm sbatch srun)
  in_namespaces 170 "$0" "$@"
fi

start_slurm() {
  mkdir -p spool ctl tmp
  hostname node
  printf '127.0.0.1 localhost\n10.77.1.1 node\n' >hosts
  mount --bind hosts /etc/hosts
  ip link set lo up
  ip link add eth0 type bridge # acts as a network card, because Slurm accepts only addresses of one
  ip address add 10.77.1.1/24 dev eth0
  ip link set eth0 up
  cat >slurm.conf <<END
ClusterName=test
SlurmctldHost=node(10.77.1.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SchedulerParameters=sched_interval=1
MpiDefault=none
ReturnToService=2
PluginDir=$slurm/usr/lib/x86_64-linux-gnu/slurm-wlm
StateSaveLocation=$scratch/ctl
SlurmdSpoolDir=$scratch/spool
SlurmctldPidFile=$scratch/ctld.pid
SlurmdPidFile=$scratch/d.pid
SlurmctldLogFile=$scratch/ctld.log
SlurmdLogFile=$scratch/d.log
SlurmdParameters=config_overrides
KillWait=30
NodeName=node NodeAddr=10.77.1.1 CPUs=8 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
  echo "PMIxCliTmpDirBase=$scratch/tmp" >mpi.conf
  export SLURM_CONF=$scratch/slurm.conf
  slurmctld-wlm -i >ctld.out 2>&1
  slurmd-wlm -d "$slurm/usr/sbin/slurmstepd-wlm" >d.out 2>&1
  wait_until "an idle node" node_is_idle
}
node_is_idle() { [ "$(sinfo -h -o %T)" = idle ]; }

report_failure() {
  echo "FAILED $name: $*"
  tail -n 40 ./*"-$job.out" ./*"-$job.log" ctld.log d.log || true
  exit 1
}
wait_until() { # <what> <command ...>
  local what=$1 end=$((SECONDS + 60))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || report_failure "$what: not within a minute"
    sleep 0.1
  done
}
submit() { # <name> <option ...>
  name=$1
  shift
  job=$(sbatch --parsable --nodes=1 --ntasks-per-node=4 scripts/slurm_pretrain.sbatch run.toml --checkpoint.save="$scratch/$name" "$@")
}
state() { scontrol show job "$job" | sed -n 's/.*JobState=\([A-Z]*\).*/\1/p'; }
has_state() { [[ $(state) == "$1" ]]; }
has_checkpoint() { [ -e "$name/latest" ]; }
expect_log() { grep -q -- "$1" "megatron_cpp-$job.log" || report_failure "the log has no line: $1"; }
requeued() { scontrol show job "$job" | grep -q "Restarts=$1 "; } # <times>

test_job() {
  submit plain
  wait_until "the end" has_state COMPLETED
  expect_log 'attempt=1 .* ranks=4 hosts=node .* iteration=60 .* code=0 next="done"'
}

test_rank_dies() { # the run is restarted within the job
  submit rank_dies
  wait_until "a checkpoint" has_checkpoint
  pkill -KILL -n megatron_cpp
  wait_until "the end" has_state COMPLETED
  expect_log 'attempt=1 .* code=75 next="restart"'
  expect_log 'attempt=2 .* resumed=.*iter_0.* code=0 next="done"'
}

submit_and_requeue() { # <name>: --signal requeues the job before its time limit
  submit "$1" --training.train_iters=150
  wait_until "a checkpoint" has_checkpoint
  scancel --signal=USR1 --batch "$job"
  wait_until "the queue" requeued 1
  expect_log 'attempt=1 .* code=85 next="stop: requested by a signal"'
}
expect_second_run() {
  wait_until "the end of the first run" has_state PENDING # which resets its start time
  # Slurm would wait for two minutes. The job must not start in the second in which the first run ended: a node rejects
  # a job that is not newer, in whole seconds, than that end, and Slurm then waits again.
  scontrol update JobId="$job" StartTime=now+2
  wait_until "the second run" has_state RUNNING
  wait_until "the end" has_state COMPLETED
  expect_log 'attempt=1 .* resumed=.*iter_0.* iteration=150 .* code=0 next="done"'
}
# The state on a file server after a host failed: the file still names the process that held the lock.
keep_lock() {
  flock "$name/.lock" sleep 100 &
  wait_until "a lock" is_locked
}
is_locked() { ! flock --nonblock "$name/.lock" true; }
expect_output() { grep -q -- "$1" megatron_cpp-"$job".out || report_failure "the output has no: $1"; }

test_time_is_over() {
  submit_and_requeue time_is_over
  expect_second_run
}

test_lock_is_left() { # a dead node left the lock: the job's next run takes it over
  submit_and_requeue lock_is_left
  keep_lock
  expect_second_run
  expect_output "taking over from host node, process [0-9]*, Slurm job $job of cluster test, requeued 0"
}

test_folder_of_different_job() { # the other job is, or may be, alive
  submit others
  wait_until "the end" has_state COMPLETED
  keep_lock
  submit others
  wait_until "the end" has_state FAILED
  expect_output "is in use by host node, process [0-9]*, Slurm job $((job - 1)) of .* remove .*others/.lock"
  expect_log 'attempt=1 .* code=2 next="stop: not a restartable exit code"'
}

test_canceled() { # the user cancels the job, which must not be requeued, but may save
  submit cancelled --training.train_iters=200000
  wait_until "a checkpoint" has_checkpoint
  scancel "$job"
  wait_until "the end" has_state CANCELLED
  sleep 2
  has_state CANCELLED || report_failure "$(state) after scancel"
}

test_preprocess() { # shared by the ranks that srun starts, bitwise identical to one process
  name=preprocess
  local i options=(--tokenizer_model=tokenizer.model --text_document=paragraph --workers=1)
  for i in 1 2 3 4 5 6; do (echo "Copy $i" && echo && cat train.txt) >"text_$i.txt"; done
  "$MEGATRON_CPP" preprocess text_*.txt --output_prefix=alone "${options[@]}" >preprocess.log
  srun --mpi=pmix --ntasks=4 "$MEGATRON_CPP" preprocess text_*.txt --output_prefix=shared "${options[@]}" >preprocess-srun.out 2>&1 || {
    cat preprocess-srun.out
    report_failure "preprocess under srun failed"
  }
  for ending in bin idx json; do
    cmp "alone_text_document.$ending" "shared_text_document.$ending" || report_failure "bytes differ under srun"
  done
  [ ! -e shared.parts ] || report_failure "shared.parts was not removed"
}

cd "$scratch"
ln -s "$root/scripts" scripts
name=start job=0
make_training >training.log
start_slurm
[ $# -gt 0 ] || set -- preprocess job rank_dies time_is_over lock_is_left folder_of_different_job canceled
for test in "$@"; do
  began=$SECONDS
  "test_$test"
  echo "passed: $test ($((SECONDS - began)) s)"
done
