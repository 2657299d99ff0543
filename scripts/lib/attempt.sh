# Runs and monitors one attempt, a run of scripts/pretrain.sh, for scripts/launch.sh, which sources this file.
# shellcheck shell=bash disable=SC2034,SC2154 # other variables are set or read in launch.sh

# launch.sh records signals as files: "stop" after the first one, "stop_now" after the second. If launch.sh was killed,
# the run is stopped as well.
is_orphan() { ! kill -0 $$ 2>/dev/null; }
is_stopped() { [ -e "$scratch/stop" ] || is_orphan; }
is_stopped_now() { [ -e "$scratch/stop_now" ]; }

pause() { # <seconds>: sleeps; returns early after a signal
  local end
  read_clock
  end=$((now + $1))
  until is_stopped || [ "$now" -ge "$end" ]; do
    sleep 0.2
    read_clock
  done
}

signal_job() { kill "-$1" "$job" 2>/dev/null || true; } # <signal>

# pretrain.sh (`job`) lets its ranks save after the first signal, terminates them after the second, and after the third
# kills a launcher that does not exit because it waits for a lost host.
request_save() {
  log_message "stopping: the ranks have ${own_options[--grace_period]} s to save; a second signal terminates them immediately"
  save_requested=1 deadline=$((now + own_options[--grace_period]))
  signal_job USR1
}
terminate_job() {
  [ "$save_requested" -eq 1 ] || signal_job USR1
  save_requested=1 terminated=1 deadline=$((now + 10))
  signal_job TERM
}

# Adds the time since the last call to `silence`, or resets it if the output has grown. At most two seconds are added,
# so that time in which the host was suspended does not count.
measure_silence() {
  local before=$now size_before=$size
  read_clock
  size=$(stat -c %s "$output") || size=$size_before
  silence=$((silence + (now - before < 2 ? now - before : 2)))
  [ "$size" = "$size_before" ] || silence=0
}

# watch_job: returns when the job has exited. Sets `hangs` to 1 if it was terminated because it printed nothing.
watch_job() {
  local save_requested=0 terminated=0 deadline=0 size=0 silence=0 limit=${own_options[--no_progress_timeout]}
  hangs=0
  read_clock
  while kill -0 "$job" 2>/dev/null; do
    sleep 0.2
    measure_silence
    if [ "$save_requested" -eq 0 ] && is_stopped; then
      request_save
    elif [ "$terminated" -eq 0 ] && is_stopped_now; then
      terminate_job
    elif [ "$save_requested" -eq 0 ] && [ "$limit" -gt 0 ] && [ "$silence" -gt "$limit" ]; then
      log_message "no output for $limit s: terminating the run as hung"
      hangs=1
      terminate_job
    elif [ "$save_requested" -eq 1 ] && [ "$now" -ge "$deadline" ]; then
      [ "$terminated" -eq 1 ] || log_message "the grace period has expired"
      terminate_job
    fi
  done
}

# run_attempt: runs on `ranks_now` ranks. Sets `code`, which is 75 for a run that hangs, and from the output
# `output_iteration` (last logged iteration, or -), `output_checkpoint` (checkpoint it resumed from, or -), and
# `output_saved` (highest saved iteration, or 0). Adds the host of a rank that was too slow to `slow_hosts`.
run_attempt() {
  local words=(-n "$ranks_now") viewer hangs slow_host
  output=$scratch/output
  : >"$output"
  if [ -n "$hostfile" ]; then words+=(--hostfile "$scratch/hostfile"); fi
  if [ "$launcher" = srun ]; then words+=(--srun); fi
  set -m # its own process group, which receives only forwarded signals
  "$root/scripts/pretrain.sh" "${words[@]}" "${arguments_now[@]}" >"$output" 2>&1 </dev/null &
  job=$!
  tail --lines=+1 --follow --sleep-interval=0.2 --pid="$job" "$output" &
  viewer=$!
  set +m
  watch_job
  wait_for "$job"
  wait "$viewer" || true
  [ "$hangs" -eq 0 ] || code=75
  # A rank that exits before the end of the run without an error counts as lost: mpirun changes its exit code 0 to 1
  # with a message, and srun waits for the other ranks. srun also returns 0 if it could not start ranks. Only rank 0
  # prints that a run has ended.
  if [ "$code" -eq 1 ] && grep -q '^mpirun has exited due to process rank' "$output"; then code=75; fi
  if [ "$code" -eq 0 ] && [[ "${arguments[*]}" != *--dry_run* ]] && ! grep -q '^ended at iteration' "$output"; then
    log_message "exit code 0 before the end of the run: a rank was lost; reporting exit code 75"
    code=75
  fi
  output_iteration=$(sed -n 's/.*\] iteration *\([0-9]*\)\/.*/\1/p' "$output" | tail -n 1)
  output_checkpoint=$(sed -n 's/.*resuming from \([^,]*\).*/\1/p' "$output" | tail -n 1)
  output_saved=$(sed -n 's/.*saved .*\/iter_0*\([0-9]\{1,\}\) in .*/\1/p' "$output" | sort -n | tail -n 1)
  slow_host=$(sed -n 's/.*rank [0-9]* on host \([^ ]*\) is slow (training.straggler_policy).*/\1/p' "$output" | tail -n 1)
  if [ -n "$slow_host" ]; then slow_hosts["$slow_host"]=1; fi
  output_saved=${output_saved:-0} output_iteration=${output_iteration:--} output_checkpoint=${output_checkpoint:--}
}
