#!/usr/bin/env bash
# Kills trainings with SIGKILL, again and again, and resumes each: what comes out must be the bits of a training that was
# left alone. By turns at a moment that the clock decides and at a point of a step or of a save. JSON lines on standard
# output, one per number of ranks; exit code 1 when any bit differs.
#   bench/kills.sh [count [ranks ...]]   kills (default 200) for each number of ranks (default 1 2)
#   SEED=n bench/kills.sh                other moments; MEGATRON_CPP names another program than build/release/megatron_cpp
set -euo pipefail
cd "$(dirname "$0")/.."

count=${1:-200}
numbers_of_ranks=("${@:2}")
[ ${#numbers_of_ranks[@]} -gt 0 ] || numbers_of_ranks=(1 2)
places=(step before_files after_files before_manifest before_rename before_latest before_prune)
# shellcheck source=bench/lib/interrupted.sh
source bench/lib/interrupted.sh
settings+=(--training.micro_batch_size=4)

soak() {
  local ranks=$1 kills=0 in_saves=0 trainings=0 different=0 stale=0 save seconds begin=$SECONDS
  train_whole "$ranks"
  while [ $kills -lt "$count" ]; do
    save=$folder/killed_$ranks
    rm -rf "$save"
    local round=0
    while true; do
      if [ $kills -ge "$count" ]; then # to the end
        train "$ranks" "$save" && wait "$job"
        break
      fi
      round=$((round + 1))
      if [ $((round % 2)) -eq 0 ]; then
        train "$ranks" "$save"
        signal_by_clock "$ranks" KILL "$seconds" && kills=$((kills + 1))
      else
        local place=${places[RANDOM % ${#places[@]}]} next rank=0
        next=$(($(reached "$save") + 1 + RANDOM % 14))
        case $place in step | *_files) rank=$((RANDOM % ranks)) ;; esac
        train "$ranks" "$save" --fault_injection.kind=kill --fault_injection.iterations=0 \
          --fault_injection.iteration=$next --fault_injection.point="$place" --fault_injection.rank=$rank
      fi
      local code=0
      wait "$job" 2>/dev/null || code=$?
      if grep -q '^fault injection: kill' "$folder/log"; then
        kills=$((kills + 1))
        [ "$place" = step ] || in_saves=$((in_saves + 1))
      fi
      [ $code -ne 0 ] || break # it came to its end
    done
    trainings=$((trainings + 1))
    same_bits "$folder/whole_$ranks" "$save" || different=$((different + 1))
    [ -z "$(find "$save" -name '*tmp*')" ] || stale=$((stale + 1))
  done
  printf '{"ranks": %d, "kills": %d, "of_them_inside_saves": %d, "trainings": %d, "with_other_bits": %d, ' \
    "$ranks" $kills $in_saves $trainings $different
  printf '"with_files_left_over": %d, "seconds": %d}\n' $stale $((SECONDS - begin))
  [ $((different + stale)) -eq 0 ]
}

machine_json "\"seed\": ${SEED:-1}"
code=0
for ranks in "${numbers_of_ranks[@]}"; do soak "$ranks" || code=1; done
exit $code
