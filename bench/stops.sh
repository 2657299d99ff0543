#!/usr/bin/env bash
# Stops training runs with SIGTERM, SIGINT or SIGUSR1 at random times repeatedly and resumes each. The result must be
# bitwise identical to the result of an uninterrupted run, with the same metrics: each iteration and each evaluation
# once.
#
#   bench/stops.sh [count [ranks ...]]   number of signals (default 60) for each number of ranks (default 1 2)
#   SEED=n bench/stops.sh                chooses different times; MEGATRON_CPP names a program other than build/release/megatron_cpp
#
# Prints one JSON line per number of ranks on standard output. Exit code 1: a result or metric differs.
set -euo pipefail
cd "$(dirname "$0")/.."

count=${1:-60}
rank_counts=("${@:2}")
[ ${#rank_counts[@]} -gt 0 ] || rank_counts=(1 2)
signals=(TERM INT USR1)
# shellcheck source=bench/lib/interrupted.sh
source bench/lib/interrupted.sh
# Half of the time is evaluation, and a step has several microbatches.
settings+=(--training.micro_batch_size=1 --training.eval_interval=4 --training.eval_iters=6)

# history_of <folder>: prints iteration, type and loss of each line of the metrics.
history_of() { sed -n 's/.*"type":"\([a-z]*\)","iteration":\([0-9]*\).*"lm_loss":\([^,]*\),.*/\2 \1 \3/p' "$1/metrics.jsonl"; }

# run_until_stopped <ranks> <folder>: succeeds if training was stopped. Counts `stops`, `canceled_steps` and `failures`.
run_until_stopped() {
  local code=0
  train "$1" "$2"
  signal_by_clock "$1" "${signals[RANDOM % 3]}" "$seconds" || true
  wait "$job" 2>/dev/null || code=$?
  case $code in
    0) return 1 ;; # training has finished
    85)
      stops=$((stops + 1))
      grep -q 'is canceled and has no effect' "$folder/log" && canceled_steps=$((canceled_steps + 1))
      return 0
      ;;
    143 | 130 | 138) return 0 ;; # before it handled signals
    *)
      cat "$folder/log" >&2
      failures=$((failures + 1))
      return 1
      ;;
  esac
}

soak() {
  local ranks=$1 stops=0 canceled_steps=0 failures=0 trainings=0 different=0 different_metrics=0 save seconds start=$SECONDS
  train_uninterrupted "$ranks" || { cat "$folder/log" >&2 && return 1; }
  while [ $stops -lt "$count" ] && [ $failures -eq 0 ]; do
    save=$folder/stopped_$ranks
    rm -rf "$save"
    while [ $stops -lt "$count" ] && run_until_stopped "$ranks" "$save"; do :; done
    [ $failures -eq 0 ] || break
    train "$ranks" "$save" && wait "$job" # run to the end
    trainings=$((trainings + 1))
    is_identical "$folder/uninterrupted_$ranks" "$save" || different=$((different + 1))
    diff <(history_of "$folder/uninterrupted_$ranks") <(history_of "$save") >&2 || different_metrics=$((different_metrics + 1))
  done
  printf '{"ranks": %d, "stops": %d, "canceled_steps": %d, "trainings": %d, "different_results": %d, ' \
    "$ranks" $stops $canceled_steps $trainings $different
  printf '"different_metrics": %d, "failures": %d, "seconds": %d}\n' $different_metrics $failures $((SECONDS - start))
  [ $((different + different_metrics + failures)) -eq 0 ]
}

environment_json "\"seed\": ${SEED:-1}"
code=0
for ranks in "${rank_counts[@]}"; do soak "$ranks" || code=1; done
exit $code
