#!/usr/bin/env bash
# Stops trainings with SIGTERM, SIGINT or SIGUSR1 at moments that the clock decides, again and again, and resumes each: what
# comes out must be the bits of a training that was left alone, with the same metrics: each iteration once, with its loss, and
# each evaluation once. JSON lines on standard output, one per number of ranks; exit code 1 when anything differs.
#   bench/stops.sh [count [ranks ...]]   signals (default 60) for each number of ranks (default 1 2)
#   SEED=n bench/stops.sh                other moments; MEGATRON_CPP names another program than build/release/megatron_cpp
set -euo pipefail
cd "$(dirname "$0")/.."

count=${1:-60}
numbers_of_ranks=("${@:2}")
[ ${#numbers_of_ranks[@]} -gt 0 ] || numbers_of_ranks=(1 2)
signals=(TERM INT USR1)
# shellcheck source=bench/lib/interrupted.sh
source bench/lib/interrupted.sh
# Half of the time goes into evaluations; a step has several microbatches.
settings+=(--training.micro_batch_size=1 --training.eval_interval=4 --training.eval_iters=6)

# What the metrics say of every iteration, in order.
history_of() { sed -n 's/.*"type":"\([a-z]*\)","iteration":\([0-9]*\).*"lm_loss":\([^,]*\),.*/\2 \1 \3/p' "$1/metrics.jsonl"; }

# run_until_stopped <ranks> <folder>: whether it was; counts in `stops`, `given_up`, `in_evaluations` and `failures`.
run_until_stopped() {
  local code=0
  train "$1" "$2"
  signal_by_clock "$1" "${signals[RANDOM % 3]}" "$seconds" || true
  wait "$job" 2>/dev/null || code=$?
  case $code in
    0) return 1 ;; # it came to its end
    85)
      stops=$((stops + 1))
      grep -q 'is cancelled and has no effect' "$folder/log" && given_up=$((given_up + 1))
      return 0
      ;;
    143 | 130 | 138) return 0 ;; # before it was listening
    *)
      cat "$folder/log" >&2
      failures=$((failures + 1))
      return 1
      ;;
  esac
}

soak() {
  local ranks=$1 stops=0 given_up=0 failures=0 trainings=0 different=0 other_metrics=0 save seconds begin=$SECONDS
  train_whole "$ranks" || { cat "$folder/log" >&2 && return 1; }
  while [ $stops -lt "$count" ] && [ $failures -eq 0 ]; do
    save=$folder/stopped_$ranks
    rm -rf "$save"
    while [ $stops -lt "$count" ] && run_until_stopped "$ranks" "$save"; do :; done
    [ $failures -eq 0 ] || break
    train "$ranks" "$save" && wait "$job" # to the end
    trainings=$((trainings + 1))
    same_bits "$folder/whole_$ranks" "$save" || different=$((different + 1))
    diff <(history_of "$folder/whole_$ranks") <(history_of "$save") >&2 || other_metrics=$((other_metrics + 1))
  done
  printf '{"ranks": %d, "stops": %d, "steps_given_up": %d, "trainings": %d, "with_other_bits": %d, ' \
    "$ranks" $stops $given_up $trainings $different
  printf '"with_other_metrics": %d, "that_failed": %d, "seconds": %d}\n' $other_metrics $failures $((SECONDS - begin))
  [ $((different + other_metrics + failures)) -eq 0 ]
}

machine_json "\"seed\": ${SEED:-1}"
code=0
for ranks in "${numbers_of_ranks[@]}"; do soak "$ranks" || code=1; done
exit $code
