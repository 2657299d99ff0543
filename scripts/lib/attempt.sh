# One run of scripts/pretrain.sh under the eyes of scripts/launch.sh, which sources this.
# shellcheck shell=bash disable=SC2034,SC2154 # what is not set or read here is in launch.sh

# Signals to launch.sh are files here: "stop" after the first one, "stop_now" after a second. One that was killed
# cannot be told any more, and has been.
is_orphan() { ! kill -0 $$ 2>/dev/null; }
is_stopped() { [ -e "$scratch/stop" ] || is_orphan; }
is_stopped_now() { [ -e "$scratch/stop_now" ]; }

pause() { # <seconds>: shorter when a signal comes
  local end
  read_clock
  end=$((now + $1))
  until is_stopped || [ "$now" -ge "$end" ]; do
    sleep 0.2
    read_clock
  done
}

signal_job() { kill "-$1" "$job" 2>/dev/null || true; } # <signal>

# `job`, pretrain.sh, lets its ranks save at the first signal, ends them at the second, and at a third kills a launcher
# that does not end by itself, because it waits for a machine that is gone.
ask_job_to_save() {
  say "stopping: the ranks have ${own_options[--grace_period]} s to save; a second signal ends them at once"
  asked=1 deadline=$((now + own_options[--grace_period]))
  signal_job USR1
}
end_job() {
  [ "$asked" -eq 1 ] || signal_job USR1
  asked=1 ended=1 deadline=$((now + 10))
  signal_job TERM
}

# Adds the time since the last call to `silence`, or ends that when the output has grown. Time in which nothing runs, as of
# a suspended machine, is no silence: of it two seconds count.
measure_silence() {
  local before=$now size_before=$size
  read_clock
  size=$(stat -c %s "$output") || size=$size_before
  silence=$((silence + (now - before < 2 ? now - before : 2)))
  [ "$size" = "$size_before" ] || silence=0
}

# watch_job: returns when it has ended; sets `hangs` when it had to be ended because it was silent.
watch_job() {
  local asked=0 ended=0 deadline=0 size=0 silence=0 limit=${own_options[--no_progress_timeout]}
  hangs=0
  read_clock
  while kill -0 "$job" 2>/dev/null; do
    sleep 0.2
    measure_silence
    if [ "$asked" -eq 0 ] && is_stopped; then
      ask_job_to_save
    elif [ "$ended" -eq 0 ] && is_stopped_now; then
      end_job
    elif [ "$asked" -eq 0 ] && [ "$limit" -gt 0 ] && [ "$silence" -gt "$limit" ]; then
      say "no output for $limit s: the run hangs and is ended"
      hangs=1
      end_job
    elif [ "$asked" -eq 1 ] && [ "$now" -ge "$deadline" ]; then
      [ "$ended" -eq 1 ] || say "the grace period is over"
      end_job
    fi
  done
}

# run_attempt: runs on `ranks_now` ranks; sets `code`, 75 also for one that hangs, and what its output says:
# `output_iteration`, the last one logged, and `output_checkpoint`, which it resumed from, - where there is none; and
# `output_saved`, the highest iteration that it saved anywhere, 0 without one.
run_attempt() {
  local words=(-n "$ranks_now") shows hangs
  output=$scratch/output
  : >"$output"
  if [ -n "$hostfile" ]; then words+=(--hostfile "$scratch/hostfile"); fi
  if [ "$launcher" = srun ]; then words+=(--srun); fi
  set -m # in a process group of its own, it sees no signal but those passed on
  "$here/scripts/pretrain.sh" "${words[@]}" "${arguments_now[@]}" >"$output" 2>&1 </dev/null &
  job=$!
  tail --lines=+1 --follow --sleep-interval=0.2 --pid="$job" "$output" &
  shows=$!
  set +m
  watch_job
  wait_for "$job"
  wait "$shows" || true
  [ "$hangs" -eq 0 ] || code=75
  # A rank that leaves in mid-run without an error is lost as one that is killed: mpirun makes a 1 of its 0 and says why, srun
  # waits for the others. Nor has srun more than words for ranks that it could not start. Only rank 0 says that a run has ended.
  if [ "$code" -eq 1 ] && grep -q '^mpirun has exited due to process rank' "$output"; then code=75; fi
  if [ "$code" -eq 0 ] && [[ "${arguments[*]}" != *--dry_run* ]] && ! grep -q '^ended at iteration' "$output"; then
    say "the run ended with exit code 0 before its end: a rank was lost; 75 stands for that"
    code=75
  fi
  output_iteration=$(sed -n 's/.*\] iteration *\([0-9]*\)\/.*/\1/p' "$output" | tail -n 1)
  output_checkpoint=$(sed -n 's/.*resuming from \([^,]*\).*/\1/p' "$output" | tail -n 1)
  output_saved=$(sed -n 's/.*saved .*\/iter_0*\([0-9]\{1,\}\) in .*/\1/p' "$output" | sort -n | tail -n 1)
  output_saved=${output_saved:-0} output_iteration=${output_iteration:--} output_checkpoint=${output_checkpoint:--}
}
