#!/usr/bin/env bash
# Trains as scripts/pretrain.sh does, and starts again by itself when ranks or machines fail:
#
#   scripts/launch.sh configs/quickstart_2_ranks.toml -n 2
#   scripts/launch.sh configs/llama_8b.toml --hostfile hosts --parallel.tensor_model_parallel_size=8
#
#   -n N                     ranks (default 1; with --hostfile all that its machines have, with --srun all of the job)
#   --hostfile FILE          machines, one "name slots=N" a line. Before every start they are asked by ssh; those that do
#                            not answer are left out, and spare ones, or fewer data-parallel ranks, do their work
#   --srun                   start with Slurm's srun instead of mpirun
#   --min_ranks N            with fewer ranks than this it waits for machines instead (default 1)
#   --max_wait S             the longest such wait, which is no restart; also for ranks of a lost machine that still hold the
#                            checkpoint folder (default 3600)
#   --max_restarts N         after so many restarts it gives up (default 10)
#   --max_backoff S          longest wait before a restart: 1 second, doubled until there is a new checkpoint (default 60)
#   --grace_period S         what SIGTERM or Ctrl-C leave the ranks to save in; a second one ends them at once (default 600)
#   --no_progress_timeout S  a run that prints nothing for so long hangs and is ended; 0 = never (default 3600)
#   --replan HARDWARE        with fewer ranks than it was begun with, the layout that `megatron_cpp plan` finds best for them on
#                            this kind of cluster (a file of configs/hardware/, or any), so that no whole replicas are needed
#   --replan_by file|run     with "run" as fast as this run itself found that cluster to be, by its metrics (`plan --from_run`);
#                            as the file says while they tell too little (default file)
#   --log FILE               a line for every attempt (default: launch.log in checkpoint.save)
# Everything else goes to megatron_cpp pretrain, whose exit codes decide: 75 (a rank or machine lost) and 85 (stopped by a
# signal, unless this script passed it on) start again, all others end it, and so do three failures alike without a new
# checkpoint between them. Codes and signals: docs/fault_tolerance.md.
set -euo pipefail
library=$(dirname "$(readlink -f "$0")")/lib # also where this was called by a link
# shellcheck source=scripts/lib/common.sh
source "$library/common.sh"
# shellcheck source=scripts/lib/hosts.sh
source "$library/hosts.sh"
# shellcheck source=scripts/lib/attempt.sh
source "$library/attempt.sh"

attempts_alike=3 # failures with one exit code, on the same ranks, without a new checkpoint, are no accident
declare -A own_options=([--min_ranks]=1 [--max_wait]=3600 [--max_restarts]=10 [--max_backoff]=60 [--grace_period]=600
  [--no_progress_timeout]=3600 [--replan]="" [--replan_by]=file [--log]="")
take_option() { own_options[$1]=$2; }

# The program alone: what a launcher around this script promises is not for it.
run_alone() { env -u OMPI_COMM_WORLD_SIZE -u PMI_SIZE -u SLURM_NTASKS -u WORLD_SIZE "$program" "$@"; }

# setting <section> <key>: its value in the resolved configuration, a text without quotes and what TOML escapes.
setting() {
  local value
  value=$(sed -n "/^\[$1\]$/,/^\[/s/^$2 = //p" <<<"$configuration")
  [[ ${value//\\\\/} != *\\u00* ]] || fail "$1.$2: control characters in a name are more than this script can read"
  sed 's/^"\(.*\)"$/\1/;s/\\\(["\\]\)/\1/g' <<<"$value"
}

# plan <ranks>: its dry run may take minutes; a signal ends it.
plan() {
  local planner
  set -m # in a process group of its own, it can be ended with all that it runs
  run_alone pretrain "${arguments_now[@]}" --dry_run --world_size="$1" </dev/null &
  planner=$!
  set +m
  while kill -0 "$planner" 2>/dev/null; do
    if is_stopped; then kill -TERM -- "-$planner" 2>/dev/null; fi
    sleep 0.1
  done
  wait "$planner" 2>/dev/null
}

# Everything that would fail at every start is found here, once.
check_run() {
  local option room=""
  for option in --max_wait --max_restarts --max_backoff --grace_period --no_progress_timeout; do
    check_number $option "${own_options[$option]}" 0
  done
  check_number --min_ranks "${own_options[--min_ranks]}" 1
  case ${own_options[--replan_by]} in
    file) ;;
    run) [ -n "${own_options[--replan]}" ] || fail "--replan_by run: needs --replan, the kind of cluster that the run is on" ;;
    *) fail "--replan_by ${own_options[--replan_by]}: must be file or run" ;;
  esac
  check_placement
  configuration=$(run_alone config "${arguments[@]}")
  check_checkpoint_settings
  replica=$(($(setting parallel tensor_model_parallel_size) * $(setting parallel context_parallel_size) *
    $(setting parallel pipeline_model_parallel_size)))
  arguments_now=("${arguments[@]}")
  if [ -n "${own_options[--replan]}" ]; then replica=1; fi # any number of ranks may have a layout
  if [ -n "$hostfile" ]; then read_hosts "$hostfile" && check_ssh && room=$(slots_of "${hosts[@]}"); fi
  if [ $launcher = srun ]; then room=${SLURM_NTASKS:-}; fi
  ranks=${ranks:-${room:-1}}
  [ -z "$room" ] || [ "$ranks" -le "$room" ] || fail "-n $ranks: there are $room slots only"
  [ "${own_options[--min_ranks]}" -le "$ranks" ] || fail "--min_ranks ${own_options[--min_ranks]}: there are $ranks ranks only"
  plan "$ranks" >"$scratch/plan" || { code=$? && is_stopped; } || exit "$code" # it has said why
  log=${own_options[--log]:-$save/launch.log}
  mkdir -p -- "$(dirname -- "$log")" || fail "--log $log: cannot make its folder"
  [ ! -d "$log" ] || fail "--log $log: is a folder"
  touch -- "$log" || fail "--log $log: cannot be written"
}
check_checkpoint_settings() {
  local load
  save=$(setting checkpoint save) || exit $?
  [ -n "$save" ] || fail "checkpoint.save is empty: a restart would begin anew; give --checkpoint.save=FOLDER"
  case $save in /*) ;; *) save=./$save ;; esac # its name may begin like an option
  load=$(setting checkpoint load) || exit $?
  [ -z "$load" ] || [ ! -e "$load/manifest.json" ] || [ "$(setting checkpoint finetune)" = true ] ||
    fail "checkpoint.load names one checkpoint: every restart would go back to it; give its folder, or checkpoint.finetune"
  [ "$(setting checkpoint save_interval)" != 0 ] ||
    say "warning: checkpoint.save_interval is 0: a failure loses all since the start; only stopping by a signal saves"
}

# find_hardware: sets `hardware`, by which fewer ranks are planned for: the kind of cluster that was named, or a file of it as
# the run found it, now or before its last start. That lies where all ranks read it.
find_hardware() {
  local file=$save/hardware_of_run.toml new=$save/hardware_of_run.new.toml run
  hardware=${own_options[--replan]}
  [ "${own_options[--replan_by]}" = run ] || return 0
  run=$(setting logging metrics_path)
  rm -f -- "$new"
  # It also predicts the configuration's own layout, which may not be possible any more; the file is written before.
  run_alone plan "${arguments[@]}" --hardware="$hardware" --from_run="${run:-$save}" --predict --emit_hardware="$new" \
    </dev/null >"$scratch/plan" 2>&1 || true
  if [ -e "$new" ]; then mv -f -- "$new" "$file"; fi
  if [ -e "$file" ]; then
    hardware=$file
    choice+="planned by what the run measured ($file), "
  else
    choice+="planned by $hardware alone ($(tail -n 1 "$scratch/plan")), "
  fi
}

# choose_ranks: sets `ranks_now` and `hosts_now`: the most ranks that the machines which answer have room for and that are
# a valid layout, in whole replicas of the model or, with --replan, as is planned for them: `arguments_now` are then more.
# The global batch stays as it is. Fails when there are none. `choice` says in words what is not as it was asked for.
choose_ranks() {
  local room=$ranks least=${own_options[--min_ranks]}
  choice="" hosts_now=$(uname -n)
  if [ $launcher = srun ]; then hosts_now=${SLURM_JOB_NODELIST:-unknown}; fi
  if [ -n "$hostfile" ]; then
    find_hosts
    [ ${#down[@]} -eq 0 ] || choice="left out: $(printf '%s, ' "${down[@]}")"
    room=$(slots_of "${up[@]}") hosts_now=$(IFS=, && echo "${up[*]:--}")
    write_hostfile "${up[@]}" >"$scratch/hostfile"
  fi
  ranks_now=$ranks arguments_now=("${arguments[@]}")
  [ "$room" -lt "$ranks" ] || return 0
  if [ -n "${own_options[--replan]}" ]; then
    find_hardware
    arguments_now+=(--plan --hardware="$hardware")
  fi
  for ((ranks_now = room / replica * replica; ranks_now >= least && ranks_now > 0; ranks_now -= replica)); do
    if is_stopped; then return 1; fi
    if plan "$ranks_now" >"$scratch/plan" 2>&1; then
      choice+="going on with $ranks_now of $ranks ranks, on $hosts_now"
      return 0
    fi
  done
  choice+="no layout for the $room ranks that there is room for: of $ranks, at least $least, in replicas of $replica"
  ranks_now=0
  return 1
}

newest_checkpoint() { # its iteration, 0 when there is none
  local newest
  newest=$(find "$save/" -maxdepth 1 -name 'iter_*' 2>/dev/null | sed -n 's/.*iter_0*\([0-9]\{1,\}\)$/\1/p' | sort -n | tail -n 1)
  echo "${newest:-0}"
}

# Ranks of a machine that was lost end when they notice; until then rank 0, if it was there, keeps others out of the folder.
is_folder_in_use() { [ "$code" -eq 2 ] && grep -q 'the checkpoint folder .* is in use by' "$scratch/output"; }

# Takes the machines that are there and runs on them. Sets `code` and what its end is: "run", or "wait" when it has to wait
# for machines, or for the folder.
run_or_wait() {
  code=85 end=run output_iteration=- output_checkpoint=- output_saved=0
  if is_stopped; then return; fi
  choose_ranks || code=75
  [ -z "$choice" ] || [ "$choice" = "$last_choice" ] || say "${choice%, }" # once while it waits
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

# What comes after `code` and `end`, or when it was told to stop: "done", "restart", "wait" or "stop: <why>".
verdict() {
  if [ "$code" -eq 0 ]; then
    echo "done"
  elif [ "$stopped" = yes ]; then
    echo "stop: as it was told to"
  elif [ "$end" = wait ]; then
    if [ $((now - waits_since)) -lt "${own_options[--max_wait]}" ]; then
      echo "wait"
    else
      echo "stop: --max_wait ${own_options[--max_wait]} is over"
    fi
  elif [ "$code" -ne 75 ] && [ "$code" -ne 85 ]; then
    echo "stop: starting again does not help after this"
  elif [ "$alike" -ge "$attempts_alike" ]; then
    echo "stop: $alike times the same failure and no new checkpoint"
  elif [ "$restarts" -ge "${own_options[--max_restarts]}" ]; then
    echo "stop: --max_restarts ${own_options[--max_restarts]} are used up"
  else
    echo "restart"
  fi
}

# note_progress <newest checkpoint before>: counts failures alike. A checkpoint is new where there was none as new in the
# folder, or, as of those in local_save only the output tells, where none as new was saved since the start.
note_progress() {
  local failure="$code on $ranks_now ranks, $hosts_now" has_progress=no
  checkpoint=$(newest_checkpoint)
  if [ "$checkpoint" -gt "$1" ] || [ "$output_saved" -gt "$highest_saved" ]; then has_progress=yes alike=0 backoff=1; fi
  if [ "$output_saved" -gt "$highest_saved" ]; then highest_saved=$output_saved; fi
  if [ "$output_saved" -gt "$checkpoint" ]; then checkpoint=$output_saved; fi
  if [ "$end" = wait ]; then return; fi
  if [ $has_progress = yes ]; then # this failure had a new checkpoint before it: it is none of those without
    last_failure=""
    return
  fi
  if [ "$failure" = "$last_failure" ]; then alike=$((alike + 1)); else alike=1; fi
  last_failure=$failure
}

# write_log <time> <newest checkpoint>: a line for what began then and found that, unless it is the same wait as before.
write_log() {
  if [ "$next" = wait ] && [ "$last_next" = wait ]; then return; fi
  local line
  line="$(date -u +%FT%TZ) attempt=$((restarts + 1)) seconds=$((now - $1)) found=$2 ranks=$ranks_now hosts=$hosts_now"
  line+=" resumed=$output_checkpoint iteration=$output_iteration checkpoint=$checkpoint code=$code next=\"$next\""
  echo "$line" >>"$log" || say "warning: $log: cannot be written"
  say "$line"
}

# Runs once, or finds that it has to wait. Sets `code` and `next`.
attempt() {
  local began before
  read_clock
  began=$now before=$(newest_checkpoint) last_next=$next
  run_or_wait
  read_clock
  note_progress "$before"
  if [ "$end" = run ]; then waits_since=""; else waits_since=${waits_since:-$began}; fi
  stopped=no
  if is_stopped; then stopped=yes; fi
  if [ $stopped = yes ] && [ "$end" = wait ]; then code=85; fi
  next=$(verdict)
  write_log "$began" "$before"
}

# Checks what was asked for, then attempts until there is nothing more to gain; exits with the code of the last.
supervise() {
  local wait_seconds
  trap : PIPE              # who read what this says may be gone
  trap : TERM INT USR1 HUP # meant for the shell that waits; who sends them by name sends them here too
  trap 'if is_orphan; then rm -rf "$scratch"; fi' EXIT
  check_run
  ranks_now=$ranks hosts_now=-
  restarts=0 alike=0 backoff=1 highest_saved=0 waits_since="" last_failure="" last_choice="" next=""
  while true; do
    attempt
    case $next in restart | wait) ;; *) break ;; esac
    wait_seconds=$((backoff < own_options[--max_backoff] ? backoff : own_options[--max_backoff]))
    backoff=$((wait_seconds * 2))
    [ "$next" = wait ] || say "exit code $code; restart $((restarts + 1)) of ${own_options[--max_restarts]} in $wait_seconds s"
    pause "$wait_seconds"
    if [ "$next" = restart ]; then restarts=$((restarts + 1)); fi
  done
  [ "$next" = "done" ] || say "exit code $code; $next"
  exit "$code"
}

# shellcheck disable=SC2317 # reached by the trap
note_signal() { if [ -e "$scratch/stop" ]; then : >"$scratch/stop_now"; else : >"$scratch/stop"; fi; }

parse_options "$@"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# A signal that comes while bash expands a $(command) may be a syntax error to it. So this shell, which gets the signals, from
# here on only waits, and the work is done by another one, in a process group of its own.
trap note_signal TERM INT USR1 HUP
set -m
supervise &
worker=$!
wait_for "$worker"
exit "$code"
