#!/usr/bin/env bash
# Runs scripts/pretrain.sh and restarts it when ranks or hosts fail.
#
#   scripts/launch.sh configs/quickstart_2_ranks.toml -n 2
#   scripts/launch.sh configs/llama_8b.toml --hostfile hosts --parallel.tensor_model_parallel_size=8
#
#   -n N                     number of ranks (default 1; with --hostfile all slots, with --srun all tasks of the job)
#   --hostfile FILE          hosts, one "name slots=N" per line. Before each start, hosts that do not answer over ssh are
#                            excluded; spare hosts or fewer data-parallel ranks take over their work. Spare hosts also
#                            replace those that training.straggler_policy found to be slow
#   --srun                   start with Slurm's srun instead of mpirun
#   --min_ranks N            wait for hosts instead of continuing with fewer ranks than N (default 1)
#   --max_wait S             longest such wait in seconds, which does not count as a restart; also applies while ranks of a
#                            lost host still hold the checkpoint folder (default 3600)
#   --max_restarts N         give up after N restarts (default 10)
#   --max_backoff S          longest delay before a restart: starts at 1 s and doubles until there is a new checkpoint
#                            (default 60)
#   --grace_period S         time that ranks have to save after SIGTERM or Ctrl-C; a second signal terminates them
#                            immediately (default 600)
#   --no_progress_timeout S  restart a run that prints nothing for S seconds; 0 disables this (default 3600)
#   --replan HARDWARE        with fewer ranks than at the start, use the layout that `megatron_cpp plan` finds for them on this
#                            hardware (a name in configs/hardware/ or a file) instead of dropping whole replicas
#   --replan_by file|run     "run" plans with speeds measured in this run (`plan --from_run`), once there are enough;
#                            "file" with those of the hardware file (default file)
#   --log FILE               file with one line per attempt (default: launch.log in checkpoint.save)
#
# All other arguments go to megatron_cpp pretrain. Exit codes 75 (rank or host lost) and 85 (stopped by a signal that
# this script did not forward) cause a restart. All others end the run, as do three identical failures without a new
# checkpoint. docs/fault_tolerance.md lists exit codes and signals.
set -euo pipefail
library=$(dirname "$(readlink -f "$0")")/lib # $0 may be a link
# shellcheck source=scripts/lib/common.sh
source "$library/common.sh"
# shellcheck source=scripts/lib/hosts.sh
source "$library/hosts.sh"
# shellcheck source=scripts/lib/attempt.sh
source "$library/attempt.sh"

max_identical_failures=3 # same exit code, ranks and hosts, without a new checkpoint
declare -A own_options=([--min_ranks]=1 [--max_wait]=3600 [--max_restarts]=10 [--max_backoff]=60 [--grace_period]=600
  [--no_progress_timeout]=3600 [--replan]="" [--replan_by]=file [--log]="")
take_option() { own_options[$1]=$2; }

# Runs the program as a single rank, without the variables of a launcher around this script.
run_single() { env -u OMPI_COMM_WORLD_SIZE -u PMI_SIZE -u SLURM_NTASKS -u WORLD_SIZE "$program" "$@"; }

# setting <section> <key>: prints the value in the resolved configuration. Strings are unquoted and unescaped.
setting() {
  local value
  value=$(sed -n "/^\[$1\]$/,/^\[/s/^$2 = //p" <<<"$configuration")
  [[ ${value//\\\\/} != *\\u00* ]] || fail "$1.$2: control characters are not supported by this script"
  sed 's/^"\(.*\)"$/\1/;s/\\\(["\\]\)/\1/g' <<<"$value"
}

# plan <ranks>: checks the layout in a dry run, which may take minutes. A signal to this script terminates it.
plan() {
  local planner
  set -m # its own process group, so that the kill below includes its children
  run_single pretrain "${arguments_now[@]}" --dry_run --world_size="$1" </dev/null &
  planner=$!
  set +m
  while kill -0 "$planner" 2>/dev/null; do
    if is_stopped; then kill -TERM -- "-$planner" 2>/dev/null; fi
    sleep 0.1
  done
  wait "$planner" 2>/dev/null
}

# Checks once everything that would fail at every start.
check_run() {
  local option available=""
  for option in --max_wait --max_restarts --max_backoff --grace_period --no_progress_timeout; do
    check_number $option "${own_options[$option]}" 0
  done
  check_number --min_ranks "${own_options[--min_ranks]}" 1
  case ${own_options[--replan_by]} in
    file) ;;
    run) [ -n "${own_options[--replan]}" ] || fail "--replan_by run: needs --replan with the hardware of the run" ;;
    *) fail "--replan_by ${own_options[--replan_by]}: must be file or run" ;;
  esac
  check_placement
  configuration=$(run_single config "${arguments[@]}")
  check_checkpoint_settings
  replica=$(($(setting parallel tensor_model_parallel_size) * $(setting parallel context_parallel_size) *
    $(setting parallel pipeline_model_parallel_size)))
  arguments_now=("${arguments[@]}")
  if [ -n "${own_options[--replan]}" ]; then replica=1; fi # the planner may use any number of ranks
  if [ -n "$hostfile" ]; then read_hosts "$hostfile" && check_ssh && available=$(slots_of "${hosts[@]}"); fi
  if [ $launcher = srun ]; then available=${SLURM_NTASKS:-}; fi
  ranks=${ranks:-${available:-1}}
  [ -z "$available" ] || [ "$ranks" -le "$available" ] || fail "-n $ranks: only $available slots are available"
  [ "${own_options[--min_ranks]}" -le "$ranks" ] || fail "--min_ranks ${own_options[--min_ranks]}: must be at most -n ($ranks)"
  plan "$ranks" >"$scratch/plan" || { code=$? && is_stopped; } || exit "$code" # the program has printed the reason
  log=${own_options[--log]:-$save/launch.log}
  mkdir -p -- "$(dirname -- "$log")" || fail "--log $log: cannot create its folder"
  [ ! -d "$log" ] || fail "--log $log: is a folder, not a file"
  touch -- "$log" || fail "--log $log: is not writable"
}
check_checkpoint_settings() {
  local load
  save=$(setting checkpoint save) || exit $?
  [ -n "$save" ] || fail "checkpoint.save is empty: a restart would begin from scratch; set --checkpoint.save=FOLDER"
  case $save in
    s3://*) save=${MEGATRON_CPP_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/megatron_cpp}/runs/${save#s3://} ;; # local files of the run
    /*) ;;
    *) save=./$save ;; # the name may begin with -
  esac
  load=$(setting checkpoint load) || exit $?
  [ -z "$load" ] || [ ! -e "$load/manifest.json" ] || [ "$(setting checkpoint finetune)" = true ] ||
    fail "checkpoint.load is a single checkpoint, to which every restart would return; use its parent folder or checkpoint.finetune"
  [ "$(setting checkpoint save_interval)" != 0 ] ||
    log_message "warning: checkpoint.save_interval is 0: a failure loses all progress; checkpoints are saved only on a stop signal"
}

# find_hardware: sets `hardware`, the argument of --hardware with which fewer ranks are planned: the value of --replan
# or, with --replan_by run, a file with speeds measured in this run. The file is in checkpoint.save, where all ranks can
# read it.
find_hardware() {
  local file=$save/hardware_of_run.toml new=$save/hardware_of_run.new.toml run
  hardware=${own_options[--replan]}
  [ "${own_options[--replan_by]}" = run ] || return 0
  run=$(setting logging metrics_path)
  rm -f -- "$new"
  # The command fails if the configured layout is no longer possible, but only after it has written the file.
  run_single plan "${arguments[@]}" --hardware="$hardware" --from_run="${run:-$save}" --predict --emit_hardware="$new" \
    </dev/null >"$scratch/plan" 2>&1 || true
  if [ -e "$new" ]; then mv -f -- "$new" "$file"; fi
  if [ -e "$file" ]; then
    hardware=$file
    choice+="planned with measurements of the run ($file), "
  else
    choice+="planned with $hardware only ($(tail -n 1 "$scratch/plan")), "
  fi
}

# choose_ranks: sets `ranks_now` and `hosts_now` to the largest valid layout on the hosts that answer. It consists of
# whole replicas of the model or, with --replan, of any number of ranks, and `arguments_now` then includes the planner's
# options. The global batch size is unchanged. Fails if there is no such layout. `choice` describes deviations from the
# request.
choose_ranks() {
  local available=$ranks min_ranks=${own_options[--min_ranks]}
  choice="" hosts_now=$(uname -n)
  if [ $launcher = srun ]; then hosts_now=${SLURM_JOB_NODELIST:-unknown}; fi
  if [ -n "$hostfile" ]; then
    find_hosts
    exclude_slow_hosts "$ranks"
    [ ${#down[@]} -eq 0 ] || choice="excluded: $(printf '%s, ' "${down[@]}")"
    available=$(slots_of "${up[@]}") hosts_now=$(IFS=, && echo "${up[*]:--}")
    write_hostfile "${up[@]}" >"$scratch/hostfile"
  fi
  ranks_now=$ranks arguments_now=("${arguments[@]}")
  [ "$available" -lt "$ranks" ] || return 0
  if [ -n "${own_options[--replan]}" ]; then
    find_hardware
    arguments_now+=(--plan --hardware="$hardware")
  fi
  for ((ranks_now = available / replica * replica; ranks_now >= min_ranks && ranks_now > 0; ranks_now -= replica)); do
    if is_stopped; then return 1; fi
    if plan "$ranks_now" >"$scratch/plan" 2>&1; then
      choice+="continuing with $ranks_now of $ranks ranks on $hosts_now"
      return 0
    fi
  done
  choice+="no valid layout for $available available slots (requested $ranks ranks, minimum $min_ranks, in multiples of $replica)"
  ranks_now=0
  return 1
}

# newest_checkpoint: prints the iteration of the newest checkpoint, 0 if there is none.
newest_checkpoint() {
  local newest
  newest=$(find "$save/" -maxdepth 1 -name 'iter_*' 2>/dev/null | sed -n 's/.*iter_0*\([0-9]\{1,\}\)$/\1/p' | sort -n | tail -n 1)
  echo "${newest:-0}"
}

# Ranks of a lost host exit only when they detect the loss. Until then rank 0, if it was on that host, holds the lock of
# the folder.
is_folder_in_use() { [ "$code" -eq 2 ] && grep -q 'the checkpoint folder .* is in use by' "$scratch/output"; }

# Runs on the hosts that answer. Sets `code`, and `end` to "run", or to "wait" if hosts or the folder are not available
# yet.
run_or_wait() {
  code=85 end=run output_iteration=- output_checkpoint=- output_saved=0
  if is_stopped; then return; fi
  choose_ranks || code=75
  [ -z "$choice" ] || [ "$choice" = "$last_choice" ] || log_message "${choice%, }" # not repeated while it waits
  last_choice=$choice
  if is_stopped; then
    code=85
  elif [ "$code" -eq 75 ]; then
    end="wait"
  else
    run_attempt
    if [ "$restarts" -gt 0 ] && is_folder_in_use; then end="wait"; fi
  fi
}

# next_action: prints the action after an attempt with `code` and `end`: "done", "restart", "wait" or "stop: <reason>".
next_action() {
  if [ "$code" -eq 0 ]; then
    echo "done"
  elif [ "$stopped" = yes ]; then
    echo "stop: requested by a signal"
  elif [ "$end" = wait ]; then
    if [ $((now - wait_start)) -lt "${own_options[--max_wait]}" ]; then
      echo "wait"
    else
      echo "stop: --max_wait ${own_options[--max_wait]} exceeded"
    fi
  elif [ "$code" -ne 75 ] && [ "$code" -ne 85 ]; then
    echo "stop: not a restartable exit code"
  elif [ "$identical_failures" -ge "$max_identical_failures" ]; then
    echo "stop: $identical_failures identical failures without a new checkpoint"
  elif [ "$restarts" -ge "${own_options[--max_restarts]}" ]; then
    echo "stop: --max_restarts ${own_options[--max_restarts]} reached"
  else
    echo "restart"
  fi
}

# record_progress <newest checkpoint before>: counts identical failures. A checkpoint is new if its iteration is higher
# than any in the folder before or, for local_save, whose checkpoints only the output reports, than any saved since the
# start.
record_progress() {
  local failure="$code on $ranks_now ranks, $hosts_now" has_progress=no
  checkpoint=$(newest_checkpoint)
  if [ "$checkpoint" -gt "$1" ] || [ "$output_saved" -gt "$highest_saved" ]; then has_progress=yes identical_failures=0 backoff=1; fi
  if [ "$output_saved" -gt "$highest_saved" ]; then highest_saved=$output_saved; fi
  if [ "$output_saved" -gt "$checkpoint" ]; then checkpoint=$output_saved; fi
  if [ "$end" = wait ]; then return; fi
  if [ $has_progress = yes ]; then # this failure does not count
    last_failure=""
    return
  fi
  if [ "$failure" = "$last_failure" ]; then identical_failures=$((identical_failures + 1)); else identical_failures=1; fi
  last_failure=$failure
}

# write_log <start time> <newest checkpoint before>: appends a line for the attempt, unless it continues a wait.
write_log() {
  if [ "$next" = wait ] && [ "$last_next" = wait ]; then return; fi
  local line
  line="$(date -u +%FT%TZ) attempt=$((restarts + 1)) seconds=$((now - $1)) found=$2 ranks=$ranks_now hosts=$hosts_now"
  line+=" resumed=$output_checkpoint iteration=$output_iteration checkpoint=$checkpoint code=$code next=\"$next\""
  echo "$line" >>"$log" || log_message "warning: $log: is not writable"
  log_message "$line"
}

# Runs once or determines that it has to wait. Sets `code` and `next`.
attempt() {
  local start before
  read_clock
  start=$now before=$(newest_checkpoint) last_next=$next
  run_or_wait
  read_clock
  record_progress "$before"
  if [ "$end" = run ]; then wait_start=""; else wait_start=${wait_start:-$start}; fi
  stopped=no
  if is_stopped; then stopped=yes; fi
  if [ $stopped = yes ] && [ "$end" = wait ]; then code=85; fi
  next=$(next_action)
  write_log "$start" "$before"
}

# Checks the arguments, then runs attempts until one ends the run, and exits with its code.
supervise() {
  local wait_seconds
  trap : PIPE              # the reader of the output may have exited
  trap : TERM INT USR1 HUP # handled by the shell that waits; pkill by name sends them here too
  trap 'if is_orphan; then rm -rf "$scratch"; fi' EXIT
  check_run
  ranks_now=$ranks hosts_now=-
  restarts=0 identical_failures=0 backoff=1 highest_saved=0 wait_start="" last_failure="" last_choice="" next=""
  while true; do
    attempt
    case $next in restart | wait) ;; *) break ;; esac
    wait_seconds=$((backoff < own_options[--max_backoff] ? backoff : own_options[--max_backoff]))
    backoff=$((wait_seconds * 2))
    [ "$next" = wait ] || log_message "exit code $code; restart $((restarts + 1)) of ${own_options[--max_restarts]} in $wait_seconds s"
    pause "$wait_seconds"
    if [ "$next" = restart ]; then restarts=$((restarts + 1)); fi
  done
  [ "$next" = "done" ] || log_message "exit code $code; $next"
  exit "$code"
}

# shellcheck disable=SC2317 # called by the trap
record_signal() { if [ -e "$scratch/stop" ]; then : >"$scratch/stop_now"; else : >"$scratch/stop"; fi; }

parse_options "$@"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# A signal during the expansion of a $(command) can cause a syntax error in bash. Therefore this shell, which receives
# the signals, only waits, and another one in its own process group does the work.
trap record_signal TERM INT USR1 HUP
set -m
supervise &
worker=$!
wait_for "$worker"
exit "$code"
