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
RANDOM=${SEED:-1}
program=${MEGATRON_CPP:-$PWD/build/release/megatron_cpp}
[ -n "${MEGATRON_CPP:-}" ] || scripts/build.sh release megatron_cpp >/dev/null
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
places=(step before_files after_files before_manifest before_rename before_latest before_prune)

root=$PWD MEGATRON_CPP=$(realpath "$program")
# shellcheck source=tests/support/small_training.sh
source tests/support/small_training.sh
(cd "$folder" && make_training >/dev/null)
settings=(--training.micro_batch_size=4 --training.eval_iters=0 --optimizer.lr_decay_style=cosine
  --optimizer.lr_warmup_iters=3 --checkpoint.save_interval=7
  --parallel.tensor_model_parallel_size=1 --parallel.zero_stage=0)

# train <ranks> <folder to save in> [option ...]: in the background; its process is $job, its output in log
train() {
  local ranks=$1 save=$2
  shift 2
  local launch=()
  if [ "$ranks" -gt 1 ]; then
    launch=(mpirun -n "$ranks" --oversubscribe --bind-to none)
    [ "$(id -u)" -ne 0 ] || launch+=(--allow-run-as-root)
  fi
  "${launch[@]}" "$program" pretrain "$folder/run.toml" --checkpoint.save="$save" "${settings[@]}" "$@" >"$folder/log" 2>&1 &
  job=$!
}

# The processes of the ranks of $job.
rank_processes() { if [ "$1" -gt 1 ]; then pgrep -P "$job" || true; else echo "$job"; fi; }

# Kills a rank of $job after some of the time that a whole training takes; whether it was still there.
kill_by_clock() {
  local ranks=$1 processes
  sleep "$(awk -v most="$2" -v r="$RANDOM" 'BEGIN { print 0.05 + most * r / 32768 }')"
  mapfile -t processes < <(rank_processes "$ranks")
  [ ${#processes[@]} -gt 0 ] && kill -KILL "${processes[RANDOM % ${#processes[@]}]}" 2>/dev/null
}

# Where the newest checkpoint in a folder stands.
reached() {
  local newest
  newest=$(cat "$1/latest" 2>/dev/null || echo iter_0)
  echo $((10#${newest#iter_}))
}

soak() {
  local ranks=$1 kills=0 in_saves=0 trainings=0 different=0 stale=0 save start seconds begin=$SECONDS
  start=$(date +%s.%N)
  train "$ranks" "$folder/whole_$ranks" && wait "$job"
  seconds=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { print b - a }')
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
        kill_by_clock "$ranks" "$seconds" && kills=$((kills + 1))
      else
        local place=${places[RANDOM % ${#places[@]}]} next rank=0
        next=$(($(reached "$save") + 1 + RANDOM % 14))
        case $place in step | *_files) rank=$((RANDOM % ranks)) ;; esac
        train "$ranks" "$save" --fault_injection.kind=kill --fault_injection.iterations=0 \
          --fault_injection.iteration=$next --fault_injection.at="$place" --fault_injection.rank=$rank
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
    "$program" checkpoint diff "$folder/whole_$ranks" "$save" >"$folder/diff" || different=$((different + 1))
    grep -q ' tensors compared, 0 differ' "$folder/diff" || different=$((different + 1))
    [ -z "$(find "$save" -name '*tmp*')" ] || stale=$((stale + 1))
  done
  printf '{"ranks": %d, "kills": %d, "of_them_inside_saves": %d, "trainings": %d, "with_other_bits": %d, ' \
    "$ranks" $kills $in_saves $trainings $different
  printf '"with_files_left_over": %d, "seconds": %d}\n' $stale $((SECONDS - begin))
  [ $((different + stale)) -eq 0 ]
}

processor=$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)
printf '{"processor": "%s", "cores": %s, "date": "%s", "seed": %s}\n' "$processor" "$(nproc)" "$(date -u +%FT%TZ)" "${SEED:-1}"
code=0
for ranks in "${numbers_of_ranks[@]}"; do soak "$ranks" || code=1; done
exit $code
