# One run of scripts/pretrain.sh under the eyes of scripts/launch.sh, which sources this.
# shellcheck shell=bash disable=SC2034,SC2154 # what is not set or read here is in launch.sh

# The first signal lets the ranks save, within the grace period; a second ends them at once. `job` is pretrain.sh, which
# takes signals the same way.
stop() {
  stops=$((stops + 1))
  if [ "$stops" -eq 1 ]; then
    say "stopping: the ranks have ${own_options[--grace_period]} s to save; a second signal ends them at once"
    signal_job USR1
    deadline=$((SECONDS + own_options[--grace_period]))
  else
    end_job
  fi
}
signal_job() { [ -z "$job" ] || kill "-$1" "$job" 2>/dev/null || true; } # <signal>

# Ends the run without saving: TERM twice reaches the ranks, whatever came before; when that does not help within
# seconds, as with a launcher that waits for a machine that is gone, the launcher is killed as well.
end_job() {
  deadline=$((SECONDS + 10))
  signal_job TERM
}

pause() { # <seconds>: shorter when a signal comes
  local end=$((SECONDS + $1))
  while [ "$SECONDS" -lt "$end" ] && [ "$stops" -eq 0 ]; do sleep 0.2; done
}

# Is its output older than the longest silence?
is_silent() {
  local limit=${own_options[--no_progress_timeout]}
  [ "$limit" -gt 0 ] && [ $(($(date +%s) - $(stat -c %Y "$output"))) -gt "$limit" ]
}

# run_attempt: runs on `ranks_now` ranks; sets `code`, 75 also for one that hangs, and what its output says:
# `output_iteration`, the last one logged, and `output_checkpoint`, which it resumed from; - where there is none.
run_attempt() {
  local words=(-n "$ranks_now") shows hangs=0
  output=$scratch/output deadline=""
  : >"$output"
  if [ -n "$hostfile" ]; then words+=(--hostfile "$scratch/hostfile"); fi
  if [ "$launcher" = srun ]; then words+=(--srun); fi
  set -m # in a process group of its own, it sees no signal but those passed on
  "$here/scripts/pretrain.sh" "${words[@]}" "${arguments[@]}" >"$output" 2>&1 </dev/null &
  job=$!
  tail --lines=+1 --follow --sleep-interval=0.2 --pid="$job" "$output" &
  shows=$!
  set +m
  while kill -0 "$job" 2>/dev/null; do
    sleep 0.2
    if [ "$hangs" -eq 0 ] && is_silent; then
      say "no output for ${own_options[--no_progress_timeout]} s: the run hangs and is ended"
      hangs=1
      signal_job USR1
      end_job
    elif [ -n "$deadline" ] && [ "$SECONDS" -ge "$deadline" ]; then
      [ "$stops" -ne 1 ] || say "the grace period is over"
      end_job
    fi
  done
  code=0
  wait "$job" || code=$?
  job=""
  wait "$shows" || true
  [ "$hangs" -eq 0 ] || code=75
  # srun has nothing but words for ranks that it could not start: its exit code is 0.
  if [ "$code" -eq 0 ] && grep -q '^srun: error: .* launch failed' "$output"; then code=75; fi
  output_iteration=$(sed -n 's/.*\] iteration *\([0-9]*\)\/.*/\1/p' "$output" | tail -n 1)
  output_checkpoint=$(sed -n 's/.*resuming from \([^,]*\).*/\1/p' "$output" | tail -n 1)
  output_iteration=${output_iteration:--} output_checkpoint=${output_checkpoint:--}
}
