#!/usr/bin/env bash
# Kills training runs with SIGKILL repeatedly and resumes each. The result must be bitwise identical to the result of an
# uninterrupted run. Kills alternate between random times and random points of a step or a save.
#
#   bench/kills.sh [count [ranks ...]]   number of kills (default 200) for each number of ranks (default 1 2)
#   SEED=n bench/kills.sh                chooses different times; MEGATRON_CPP names a program other than build/release/megatron_cpp
#
# Prints one JSON line per number of ranks on standard output. Exit code 1: a result differs or temporary files are
# left.
set -euo pipefail
cd "$(dirname "$0")/.."

count=${1:-200}
rank_counts=("${@:2}")
[ ${#rank_counts[@]} -gt 0 ] || rank_counts=(1 2)
points=(step before_files after_files before_manifest before_rename before_latest before_prune)
# shellcheck source=bench/lib/interrupted.sh
source bench/lib/interrupted.sh
settings+=(--training.micro_batch_size=4)

soak() {
  local ranks=$1 kills=0 in_saves=0 trainings=0 different=0 stale=0 save seconds start=$SECONDS
  train_uninterrupted "$ranks"
  while [ $kills -lt "$count" ]; do
    save=$folder/killed_$ranks
    rm -rf "$save"
    local round=0
    while true; do
      if [ $kills -ge "$count" ]; then # run to the end
        train "$ranks" "$save" && wait "$job"
        break
      fi
      round=$((round + 1))
      if [ $((round % 2)) -eq 0 ]; then
        train "$ranks" "$save"
        signal_by_clock "$ranks" KILL "$seconds" && kills=$((kills + 1))
      else
        local point=${points[RANDOM % ${#points[@]}]} next rank=0
        next=$(($(reached "$save") + 1 + RANDOM % 14))
        case $point in step | *_files) rank=$((RANDOM % ranks)) ;; esac
        train "$ranks" "$save" --fault_injection.kind=kill --fault_injection.iterations=0 \
          --fault_injection.iteration=$next --fault_injection.point="$point" --fault_injection.rank=$rank
      fi
      local code=0
      wait "$job" 2>/dev/null || code=$?
      if grep -q '^fault injection: kill' "$folder/log"; then
        kills=$((kills + 1))
        [ "$point" = step ] || in_saves=$((in_saves + 1))
      fi
      [ $code -ne 0 ] || break # training has finished
    done
    trainings=$((trainings + 1))
    is_identical "$folder/uninterrupted_$ranks" "$save" || different=$((different + 1))
    [ -z "$(find "$save" -name '*tmp*')" ] || stale=$((stale + 1))
  done
  printf '{"ranks": %d, "kills": %d, "kills_inside_saves": %d, "trainings": %d, "different_results": %d, ' \
    "$ranks" $kills $in_saves $trainings $different
  printf '"with_temporary_files": %d, "seconds": %d}\n' $stale $((SECONDS - start))
  [ $((different + stale)) -eq 0 ]
}

environment_json "\"seed\": ${SEED:-1}"
code=0
for ranks in "${rank_counts[@]}"; do soak "$ranks" || code=1; done
exit $code
