#!/usr/bin/env bash
# Tests what scripts/launch.sh does after each kind of exit, with fakes of mpirun, ssh and the program that exit as
# requested. The real programs: tests/multi_node/run.sh.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0
launch=$root/scripts/launch.sh

# The fake program plans the layouts in $STUB/valid_ranks (all if there is no such file). Its Nth training follows line
# N of $STUB/ends: an exit code, "mute" to exit with 0 before the end of the run, or "improper" to exit like mpirun after
# that. Before it, "save I" leaves a checkpoint, "local I" reports one in a different folder, "old_clock" dates it back
# two hours, and "locked" reports that the folder is in use. "hang" hangs, "oom" takes 300 MB, "signal" waits for one
# and saves, and "stubborn" ignores signals. "slow HOST" saves and reports a slow rank on this host. It saves in $SAVE.
cat >"$scratch/program" <<'END'
#!/usr/bin/env bash
if [ "$1" = config ]; then
  [[ "$*" != *bad_key* ]] || { echo "unknown key" >&2 && exit 2; }
  printf '[parallel]\ntensor_model_parallel_size = 2\ncontext_parallel_size = 1\npipeline_model_parallel_size = 1\n[other]\nsave = "no"\n[checkpoint]\n'
  printf 'save = "%s"\nload = ""\nsave_interval = 5\n[last]\nsave = "no"\n' "$(sed 's/["\\]/\\&/g' <<<"$SAVE")"
  exit 0
elif [ "$1" = plan ]; then # uses the run's measurements if $STUB/measured exists
  [ -f "$STUB/measured" ] || { echo "has 1 lines of steps" >&2 && exit 2; }
  for word in "$@"; do case $word in --emit_hardware=*) cp "$STUB/measured" "${word#*=}" ;; esac; done
  echo "$*" >>"$STUB/measured_with"
  exit "$(cat "$STUB/plan_code" 2>/dev/null || echo 0)"
elif [[ "$*" == *--dry_run* ]]; then
  [ ! -f "$STUB/valid_ranks" ] || grep -qxe "${*: -1}" "$STUB/valid_ranks" || { echo "no such layout" >&2 && exit 2; }
  [ ! -f "$STUB/slow_plan" ] || { touch "$STUB/ready" && sleep 100; }
  exit 0
fi
echo run >>"$STUB/runs"
echo "$*" >>"$STUB/trained_with"
read -r -a words <<<"$(sed -n "$(wc -l <"$STUB/runs")p" "$STUB/ends")"
echo "resuming from $STUB/save/iter_newest"
echo "[now] iteration        7/ 100 | words"
for ((k = 0; k < ${#words[@]}; k++)); do
  case ${words[k]} in
    save) k=$((k + 1)) && mkdir -p -- "$SAVE/iter_000000${words[k]}" ;;
    local) k=$((k + 1)) && echo "saved /local/rank_00000-of-00002/iter_000000${words[k]} in 1.5s" ;;
    old_clock) touch -d "2 hours ago" /proc/self/fd/1 && sleep 1 ;;
    locked) echo "the checkpoint folder $SAVE is in use by host a, process 7" ;;
    hang) trap '' USR1 && sleep 60 & wait ;;
    stubborn) trap 'echo asked' USR1 && touch "$STUB/ready" && while true; do sleep 0.1; done ;;
    slow) k=$((k + 1)) && mkdir -p -- "$SAVE/iter_0000008" && echo "warning: rank 3 on host ${words[k]} is slow (training.straggler_policy): saving and stopping" ;;
    oom) exec bash -c 'x=$(tail -c 300M /dev/zero | tr "\0" x)' ;;
    signal) trap 'mkdir -p "$SAVE/iter_0000099"; exit 85' USR1 && touch "$STUB/ready" && while true; do sleep 0.1; done ;;
    mute) exit 0 ;; # like a rank that exits before the end of the run, which Slurm's srun does not detect
    improper) echo "mpirun has exited due to process rank 1 with PID 0 on" && exit 1 ;;
    0) echo "ended at iteration 7 of 100" && exit 0 ;;
    *) exit "${words[k]}" ;;
  esac
done
END
cat >"$scratch/mpirun" <<'END'
#!/usr/bin/env bash
while [ "$1" != "$MEGATRON_CPP" ]; do
  [ "$1" != -n ] || echo "-n $2" >>"$STUB/mpirun"
  [ "$1" != --hostfile ] || echo "$(tr '\n' ';' <"$2")" >>"$STUB/mpirun"
  shift
done
if [ -e "$STUB/hanging_launcher" ]; then # once, its rank becomes a zombie
  rm "$STUB/hanging_launcher"
  "$@" &
  exec tail -f /dev/null
fi
exec "$@"
END
# Fakes of Slurm's srun and scontrol. The latter records its arguments and reads the job's state from $STUB/job_state.
cat >"$scratch/srun" <<'END'
#!/usr/bin/env bash
while [ "$1" != "$MEGATRON_CPP" ]; do shift; done
exec "$@"
END
cat >"$scratch/scontrol" <<'END'
#!/usr/bin/env bash
echo "$*" >>"$STUB/scontrol"
[ "$1" != show ] || echo "   JobState=$(cat "$STUB/job_state" 2>/dev/null || echo RUNNING) Reason=None Dependency=(null)"
END
cat >"$scratch/ssh" <<'END'
#!/usr/bin/env bash
echo "$1" >>"$STUB/probed"
if grep -qx "$1" "$STUB/down" 2>/dev/null && [ "$(wc -l <"$STUB/probed")" -le "$(cat "$STUB/down_until" 2>/dev/null || echo 999)" ]; then
  echo "ssh: connect to host $1: No route to host" >&2
  exit 255
fi
name=name_of_$1
uname() { echo "$name"; }
shift
eval "$*" # like the remote shell
END
chmod +x "$scratch"/{program,mpirun,ssh,srun,scontrol}
export PATH=$scratch:$PATH MEGATRON_CPP=$scratch/program OMPI_MCA_plm_rsh_agent=$scratch/ssh

# expect <name> <exit code> <number of runs> <exits, one per line> <argument ...>: runs launch.sh; "*" runs means any.
expect() {
  local code=$2 runs=$3 ends=$4 got=0 ran
  prepare "$1" "$ends"
  shift 4
  "$launch" run.toml --max_backoff=0 "$@" >"$STUB/out" 2>"$STUB/err" </dev/null || got=$?
  ran=$(wc -l <"$STUB/runs")
  [[ "$got $ran" == "$code "$runs ]] || report_failure "exit code $got after $ran runs, not $code after $runs"
}
prepare() { # <name> <ends>
  name=$1
  export STUB=$scratch/$name SAVE=${save:-$scratch/$name/save}
  mkdir -p "$STUB"
  cp "$scratch/next.$group"/* "$STUB" 2>/dev/null || true
  rm -rf "$scratch/next.$group"
  echo "$2" >"$STUB/ends"
  touch "$STUB/runs"
}
report_failure() {
  echo "FAILED $name: $*"
  cat "$STUB/out" "$STUB/err"
  failures=$((failures + 1))
}
expect_log_count() { [ "$(grep -c -- "$2" "$SAVE/launch.log" 2>/dev/null)" = "$1" ] || report_failure "log does not contain $1 times: $2"; }
expect_message() { grep -q -- "$1" "$STUB/err" || report_failure "message is missing: $1"; }
expect_log() { grep -q -- "$1" "$SAVE/launch.log" || report_failure "log does not contain: $1"; }
provide() { mkdir -p "$scratch/next.$group" && cat >"$scratch/next.$group/$1"; } # <file>: reads a file for the next launch from standard input

# Elastic training: three hosts of two ranks each; a replica of the model needs two ranks.
elastic() { # <name> <hosts that are down> <valid layouts>
  printf 'a slots=2\nb slots=2 # half\nc slots=2\n' | provide hosts
  tr ' ' '\n' <<<"$2" | provide down
  for ranks in $3; do echo "--world_size=$ranks"; done | provide valid_ranks
}
# stopping <name> <exits> <code> <signals> <argument ...>: sends the signals when the program runs or, in a test that
# waits, when hosts were probed; to all of the script's shells if `by_name` is set, as pkill does.
errors="" stopped_runs=1 by_name=""
stopping() {
  local ends=$2 code=$3 signals=$4 pid got=0 signal
  prepare "$1" "$ends"
  shift 4
  "$launch" run.toml "$@" >"$STUB/out" 2>"${errors:-$STUB/err}" </dev/null &
  pid=$!
  for _ in {1..600}; do [ -e "$STUB/ready" ] || [ -e "$STUB/probed" ] || sleep 0.1; done
  for signal in $signals; do
    if [ -n "$by_name" ]; then pkill "-$signal" -P "$pid"; fi
    kill "-$signal" "$pid" && sleep 0.5
  done
  wait "$pid" || got=$?
  [ "$got" -eq "$code" ] || report_failure "exit code $got, not $code"
  [ "$(wc -l <"$STUB/runs")" -eq "$stopped_runs" ] || report_failure "restarted"
}

# Reaction to each kind of exit.
test_ends() {
  expect exits_with_the_training 0 1 "0"
  expect_log 'attempt=1 .* ranks=1 .* resumed=.*iter_newest iteration=7 checkpoint=0 code=0 next="done"'
  expect restarts_when_a_peer_is_lost 0 3 $'save 1 75\nsave 2 75\n0'
  expect_log 'attempt=2 .* found=1 .* checkpoint=2 code=75 next="restart"'
  expect restarts_after_ranks_were_stopped 0 2 $'save 1 85\n0'
  expect restarts_when_a_rank_is_killed 0 2 $'save 1 137\n0'
  expect restarts_when_a_host_is_lost 0 2 $'save 1 205\n0'
  expect restarts_when_a_rank_exits_early 0 3 $'save 1 mute\nsave 2 improper\n0'
  expect_message "exit code 0 before the end of the run"
  expect_log_count 2 'code=75 next="restart"'
  for code in 1 2 12 17; do expect "stops_on_$code" "$code" 1 "save 1 $code"; done
  expect stops_when_nothing_changes 75 3 $'75\n75\n75\n75'
  expect_message "3 identical failures without a new checkpoint"
  expect different_failure_resets_the_count 75 6 $'75\n75\nsave 1 75\n75\n75\n75\n75'
  expect counts_only_failures_without_a_new_checkpoint 75 4 $'save 1 75\n75\n75\n75\n0'
  expect_message "3 identical failures without a new checkpoint"
  expect waits_for_the_lock_of_a_lost_host 0 5 $'75\nlocked 2\nlocked 2\nlocked 2\n0' --max_restarts=1
  expect_log_count 1 'code=2 next="wait"'
  locked=$(printf 'locked 2\n%.0s' {1..40})
  expect limits_the_wait_for_the_lock 2 "*" $'75\n'"$locked" --max_wait=1
  expect_message "max_wait 1 exceeded"
  expect counts_local_saves_as_progress 0 4 $'local 1 75\nlocal 2 75\nlocal 3 75\n0'
  expect_log 'attempt=3 .* checkpoint=3 code=75 next="restart"'
  expect repeated_local_save_is_no_progress 75 4 $'local 5 75\nlocal 5 75\nlocal 4 75\n75\n0'
  expect_message "3 identical failures without a new checkpoint"
  export MEGATRON_CPP_CACHE=$scratch/cache
  save=s3://bucket/run expect counts_saves_to_an_object_store_as_progress 0 3 $'local 1 75\nlocal 2 75\n0'
  [ -s "$scratch/cache/runs/bucket/run/launch.log" ] || report_failure "the log is not in the cache of the node"
  expect does_not_wait_for_the_lock_of_a_different_job 2 1 "locked 2"
  expect stops_after_max_restarts 75 3 $'save 1 75\nsave 2 75\nsave 3 75\n0' --max_restarts 2
  expect_message "max_restarts 2 reached"
  # On a busy host the second attempt may also be slow to print; the next one succeeds.
  expect kills_a_hanging_run 0 "*" $'save 1 hang\n0' --no_progress_timeout=3
  expect_message "no output for 3 s"
  expect_log 'attempt=1 .* code=75 next="restart"'
  expect_log 'attempt=[2-9] .* code=0 next="done"'
  expect ignores_a_changed_clock 0 1 "old_clock 0" --no_progress_timeout=60
  expect continues_when_the_disk_of_the_log_is_full 0 2 $'save 1 75\n0' --log=/dev/full
  expect_message "warning: /dev/full: is not writable"
}

test_bad_arguments() {
  for words in "--max_restarts x" "--min_ranks 0" "-n 0" "--hostfile nowhere" "--bad_key=1" "--min_ranks 2" "--log" "--log= " \
    "--max_wait -1" "--hostfile=" "--hostfile /" "--log /proc/no/log" "--log /tmp"; do
    # shellcheck disable=SC2086 # splits an option and its value
    expect "rejects_${words//\//_}" 2 0 0 $words
  done
  provide valid_ranks <<<"--world_size=4"
  expect rejects_an_impossible_layout 2 0 0 -n 3
  expect_message "no such layout"
  provide hosts <<<"a"
  expect rejects_hosts_without_slots 2 0 0 --hostfile "$scratch/rejects_hosts_without_slots/hosts"
  expect_message 'hosts:1: expected "name slots=N", not: a'
  provide hosts <<<"-oProxyCommand=evil slots=2"
  expect rejects_options_as_hosts 2 0 0 --hostfile "$scratch/rejects_options_as_hosts/hosts"
  expect_message 'hosts:1: invalid host name'
  provide hosts <<<"a slots=2"
  OMPI_MCA_plm_rsh_agent=no_ssh expect rejects_hosts_without_ssh 2 0 0 --hostfile "$scratch/rejects_hosts_without_ssh/hosts"
  expect_message "no_ssh is not installed, so a cannot be reached"
}

test_hosts() {
  elastic all "" "6 4 2"
  expect uses_all_hosts 0 1 0 --hostfile "$scratch/uses_all_hosts/hosts"
  grep -qx -- '-n 6' "$STUB/mpirun" || report_failure "not on 6 ranks"
  elastic one_down "b" "6 4 2"
  expect excludes_a_lost_host 0 1 0 --hostfile "$scratch/excludes_a_lost_host/hosts"
  expect_message "excluded: b (ssh: connect to host b: No route to host, exit code 255), continuing with 4 of 6 ranks on a,c"
  [ "$(sort "$STUB/mpirun" | tr '\n' ' ')" = "-n 4 a slots=2;c slots=2; " ] || report_failure "not 4 ranks on a and c"
  elastic next_layout "b" "6 2"
  expect takes_the_next_valid_layout 0 1 0 --hostfile "$scratch/takes_the_next_valid_layout/hosts"
  expect_message "continuing with 2 of 6 ranks"
  elastic spare "a" "4"
  expect uses_spare_hosts 0 1 0 --hostfile "$scratch/uses_spare_hosts/hosts" -n 4
  grep -q 'b slots=2;c slots=2;' "$STUB/mpirun" || report_failure "not on b and c"
  elastic slow "" "4"
  expect replaces_a_slow_host 0 2 $'slow name_of_b 75\n0' --hostfile "$scratch/replaces_a_slow_host/hosts" -n 4
  expect_message "excluded: b (slow)"
  [ "$(tail -n 1 "$STUB/mpirun")" = "a slots=2;c slots=2;" ] || report_failure "not on a and c"
  elastic slow_without_spare "" "6"
  expect keeps_a_slow_host_without_spares 0 2 $'slow name_of_b 75\n0' --hostfile "$scratch/keeps_a_slow_host_without_spares/hosts"
  [ "$(tail -n 1 "$STUB/mpirun")" = "a slots=2;b slots=2;c slots=2;" ] || report_failure "not on all hosts"
  elastic replan "b" "6 3"
  expect replans_without_a_host 0 1 0 --hostfile "$scratch/replans_without_a_host/hosts" --replan=a100_80gb
  expect_message "continuing with 3 of 6 ranks"
  grep -q -- '--plan --hardware=a100_80gb' "$STUB/trained_with" || report_failure "trained without a plan"
  elastic replan_by_run "b" "6 3"
  provide measured <<<found
  expect plans_by_the_run 0 2 $'save 1 75\n0' --hostfile "$scratch/plans_by_the_run/hosts" --replan=a100_80gb --replan_by=run
  expect_message "planned with measurements of the run ($SAVE/hardware_of_run.toml), continuing with 3 of 6 ranks"
  [ "$(grep -c -- "--plan --hardware=$SAVE/hardware_of_run.toml" "$STUB/trained_with")" = 2 ] || report_failure "not by that file"
  [ "$(grep -c -- "--hardware=a100_80gb --from_run=$SAVE --predict" "$STUB/measured_with")" = 2 ] || report_failure "not measured again"
  [ "$(ls "$SAVE"/*.toml)" = "$SAVE/hardware_of_run.toml" ] || report_failure "files are left"
  elastic replan_by_run "b" "6 3"
  provide measured <<<found
  provide plan_code <<<2 # for the configuration's own layout, after the file was written
  expect plans_by_the_run_without_its_layout 0 1 0 --hostfile "$scratch/plans_by_the_run_without_its_layout/hosts" \
    --replan a100_80gb --replan_by run
  expect_message "planned with measurements of the run"
  elastic replan_by_nothing "b" "6 3"
  expect plans_by_the_file_of_a_run_without_steps 0 1 0 --replan=a100_80gb --replan_by=run \
    --hostfile "$scratch/plans_by_the_file_of_a_run_without_steps/hosts"
  expect_message "planned with a100_80gb only (has 1 lines of steps), continuing with 3 of 6 ranks"
  grep -q -- '--plan --hardware=a100_80gb' "$STUB/trained_with" || report_failure "trained without a plan"
  elastic no_replan "" "6 3"
  expect keeps_its_layout_on_all_ranks 0 1 0 --hostfile "$scratch/keeps_its_layout_on_all_ranks/hosts" --replan=a100_80gb
  ! grep -q -- '--plan' "$STUB/trained_with" || report_failure "planned although no host is missing"
  expect rejects_a_run_of_no_cluster 2 0 0 --replan_by=run
  expect_message "replan_by run: needs --replan"
  expect rejects_other_plans 2 0 0 --replan=a100_80gb --replan_by=luck
  expect_message "replan_by luck: must be file or run"
  elastic none "a b c" "6"
  expect stops_without_hosts 75 0 0 --hostfile "$scratch/stops_without_hosts/hosts" --max_wait=1
  expect_message "no valid layout for 0 available slots"
  expect_message "max_wait 1 exceeded"
  elastic minimum "b" "6 4"
  expect waits_for_min_ranks 75 0 0 --hostfile "$scratch/waits_for_min_ranks/hosts" --max_wait=1 --min_ranks=6
  elastic back "a b c" "6"
  provide down_until <<<12
  expect waiting_is_no_restart 0 1 0 --hostfile "$scratch/waiting_is_no_restart/hosts" --max_restarts=0
  expect_log_count 1 'next="wait"'
  expect_log 'attempt=1 .* ranks=6 hosts=a,b,c .* code=0 next="done"'
  printf 'a slots=2\r\n\r\nb slots=2 max_slots=2\r\n' | provide hosts
  OMPI_MCA_plm_rsh_agent="$scratch/ssh : rsh" expect reads_windows_hostfiles 0 1 0 --hostfile "$scratch/reads_windows_hostfiles/hosts"
  grep -qx 'a slots=2;b slots=2;' "$STUB/mpirun" || report_failure "not on a and b"
  printf 'a slots=2\n' | provide hosts
  OMPI_MCA_plm_rsh_agent="no_qrsh : $scratch/ssh" expect uses_the_available_agent 0 1 0 \
    --hostfile "$scratch/uses_the_available_agent/hosts"
  grep -qx a "$STUB/probed" || report_failure "did not probe a"
}

# Locations and names of files.
test_paths() {
  mkdir -p "$scratch/work" "$scratch/real"
  cd "$scratch/work"
  # shellcheck disable=SC2016 # must not be expanded
  save='-"odd" \u00 $(name)' expect relative_save_with_an_odd_name 0 4 $'save 1 75\nsave 2 75\nsave 3 75\n0'
  ln -s "$scratch/real" "$scratch/link"
  save=$scratch/link expect save_is_a_link 0 4 $'save 1 75\nsave 2 75\nsave 3 75\n0'
  mkdir -p "$scratch/folder with 'quotes'" "$scratch/elsewhere/scripts/lib"
  cp "$scratch/program" "$scratch/folder with 'quotes'"
  printf 'a slots=2\n' | provide hosts
  MEGATRON_CPP="$scratch/folder with 'quotes'/program" expect program_in_an_odd_folder 0 1 0 \
    --hostfile "$scratch/program_in_an_odd_folder/hosts"
  printf 'a slots=2\n' | provide hosts
  cd "$root"
  CDPATH=$scratch/elsewhere launch=scripts/launch.sh expect ignores_cdpath 0 1 0
  ln -s "$root/scripts/launch.sh" "$scratch/train"
  launch=$scratch/train expect called_by_a_link 0 1 0
}

# Signals to launch.sh itself.
test_signals() {
  stopping saves_on_sigterm "signal" 85 TERM
  expect_log 'checkpoint=99 code=85 next="stop: requested by a signal"'
  stopping forwards_sigusr1 "signal" 85 USR1
  stopping second_signal_stops_immediately "stubborn" 143 "TERM TERM"
  stopping respects_the_grace_period "stubborn" 143 TERM --grace_period=1
  expect_message "the grace period has expired"
  elastic none "a b c" "6"
  stopped_runs=0 stopping ends_while_it_waits 0 85 TERM --hostfile "$scratch/ends_while_it_waits/hosts"
  expect_log 'code=85 next="stop: requested by a signal"'

  by_name=yes stopping saves_when_all_its_shells_get_the_signal "signal" 85 TERM
  expect_log 'checkpoint=99 code=85 next="stop: requested by a signal"'
  by_name=yes stopping all_its_shells_get_a_second_signal "stubborn" 143 "TERM TERM"
  provide slow_plan <<<""
  stopped_runs=0 stopping ends_while_it_checks "0" 85 TERM
  expect_log 'ranks=1 hosts=- .* code=85 next="stop: requested by a signal"'

  errors=/dev/full stopping saves_when_the_terminal_is_closed "signal" 85 HUP
  expect_log 'checkpoint=99 code=85'

  # Killing launch.sh makes the ranks save and exit.
  stopping saves_when_it_is_killed "signal" 137 KILL
  for _ in {1..600}; do grep -q code= "$SAVE/launch.log" || sleep 0.1; done
  expect_log 'checkpoint=99 code=85 next="stop: requested by a signal"'

  # Killing pretrain.sh leaves no training ranks behind, either.
  prepare ends_the_ranks_when_pretrain_is_killed "stubborn"
  "$root/scripts/pretrain.sh" run.toml --marker="$STUB" >"$STUB/out" 2>"$STUB/err" </dev/null &
  pid=$!
  for _ in {1..600}; do [ -e "$STUB/ready" ] || sleep 0.1; done
  kill -KILL "$pid"
  wait "$pid" || true
  for _ in {1..100}; do ! pgrep -f -- "pretrain run.toml --marker=$STUB" >/dev/null || sleep 0.1; done
  ! pgrep -f -- "pretrain run.toml --marker=$STUB" >/dev/null || report_failure "ranks keep training"

  # A launcher that does not detect the exit of its ranks.
  provide hanging_launcher <<<""
  MCPP_ZOMBIE_SECONDS=2 expect kills_a_launcher_of_zombies 0 2 $'save 1 75\n0'

  prepare continues_when_the_reader_of_its_output_exits $'save 1 75\nsave 2 75\n0'
  touch "$STUB/out" "$STUB/err"
  env --default-signal=PIPE "$launch" run.toml --max_backoff=0 2>&1 </dev/null | true || report_failure "fails"
  expect_log 'attempt=3 .* code=0 next="done"'
}

# The job script; the checkpoint folder may be older than the job: job <exit code> <runs so far> <times requeued>.
job() {
  local got=0
  SLURM_JOB_ID=7 SLURM_NTASKS=1 SLURM_SUBMIT_DIR=$STUB bash "$root/scripts/slurm_pretrain.sbatch" run.toml --max_backoff=0 \
    >>"$STUB/out" 2>>"$STUB/err" </dev/null || got=$?
  [ "$got" -eq "$1" ] || report_failure "exit code $got of the job, not $1"
  [ "$(wc -l <"$STUB/runs")" -eq "$2" ] || report_failure "not $2 runs"
  [ "$(grep -cx 'requeue 7' "$STUB/scontrol" 2>/dev/null)" = "$3" ] || report_failure "not $3 times requeued"
}
test_jobs() {
  prepare old_checkpoints_are_no_progress $'75\n75\n75'
  mkdir -p "$SAVE/iter_0000050"
  ln -s "$root/scripts" "$STUB/scripts"
  touch "$STUB/scontrol"
  job 75 3 0
  prepare new_checkpoints_are_progress $'save 60 75\n75\n75\n75\n75\n75\n75'
  mkdir -p "$SAVE/iter_0000050"
  ln -s "$root/scripts" "$STUB/scripts"
  touch "$STUB/scontrol"
  job 0 4 1
  job 75 7 1
  prepare cancelled_jobs_are_not_queued_again $'save 60 75\n75\n75\n75'
  ln -s "$root/scripts" "$STUB/scripts"
  echo CANCELLED >"$STUB/job_state"
  job 75 4 0
}

# Kernel counters of killed processes, in control groups of version 1 and 2 and without control groups.
kills_with() { # <count> <file> <line> [file line]: checks the result of oom_kills on a system with these files
  local expected=$1 system
  shift
  system=$(mktemp -d "$scratch/system.XXXX")
  while [ $# -gt 0 ]; do
    mkdir -p "$system/$(dirname "$1")" && printf '%b\n' "$2" >"$system/$1"
    shift 2
  done
  [ "$(source "$root/scripts/lib/common.sh" && oom_kills "$system")" = "$expected" ] || report_failure "not $expected kills"
}
in_group() { # <control group> <arguments of expect ...>: runs launch.sh and its processes inside the group
  local control=$1 failed=0
  shift
  (
    echo "$BASHPID" >"$control/cgroup.procs"
    # shellcheck disable=SC2030 # added below
    failures=0
    expect "$@"
    [ "$2" -eq 0 ] || grep -q 'the kernel killed a rank because this host ran out of memory' "$STUB/out" || report_failure "does not print the reason"
    exit "$failures"
  ) || failed=$?
  # shellcheck disable=SC2031
  failures=$((failures + failed))
}
test_memory() {
  prepare counts_out_of_memory_kills "0"
  kills_with 7 proc/self/cgroup '0::/a/b' sys/fs/cgroup/a/b/memory.events 'oom 9\noom_kill 7\noom_group_kill 1' proc/vmstat 'oom_kill 5'
  kills_with 3 proc/self/cgroup '4:cpu,memory:/a\n0::/' sys/fs/cgroup/memory/a/memory.oom_control 'under_oom 0\noom_kill 3'
  kills_with 5 proc/self/cgroup '0::/' proc/vmstat 'oom_kill 5'
  kills_with 0 proc/self/cgroup '0::/'

  # With a real control group, if one can be created.
  local control
  for control in /sys/fs/cgroup/memory"$(sed -n 's/^[0-9]*:[^:]*memory[^:]*://p' /proc/self/cgroup)"/mcpp_$$ \
    /sys/fs/cgroup"$(sed -n 's/^0:://p' /proc/self/cgroup)"/mcpp_$$; do
    mkdir "$control" 2>/dev/null || continue
    if ! echo 100M >"$control/memory.limit_in_bytes" && ! echo 100M >"$control/memory.max"; then
      rmdir "$control"
      continue
    fi 2>/dev/null
    in_group "$control" a_kill_for_memory_ends_it 12 1 $'save 1 oom\n0'
    in_group "$control" another_kill_does_not 0 2 $'save 1 137\n0'
    rmdir "$control" || report_failure "$control was not removed"
    return
  done
  echo "skipped: no control group can be made here"
}

# The tests mostly wait, so they run concurrently.
groups=(ends bad_arguments hosts paths signals jobs memory)
pids=()
for group in "${groups[@]}"; do
  (
    "test_$group"
    exit "$failures"
  ) >"$scratch/$group.log" 2>&1 &
  pids+=($!)
done
failed=0
for k in "${!groups[@]}"; do
  wait "${pids[k]}" || { failed=1 && cat "$scratch/${groups[k]}.log"; }
done
[ "$failed" -eq 0 ] || exit 1
echo "all as expected"
