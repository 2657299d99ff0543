# Makes small runs that are interrupted repeatedly, in a temporary $folder, and compares results. To be sourced from
# the root of the sources. SEED determines the random times.
# shellcheck shell=bash disable=SC2154 # other variables are set by the caller

# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
RANDOM=${SEED:-1}
program=${MEGATRON_CPP:-$PWD/build/release/megatron_cpp}
[ -n "${MEGATRON_CPP:-}" ] || scripts/build.sh release megatron_cpp >/dev/null
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
root=$PWD MEGATRON_CPP=$(realpath "$program")
# shellcheck source=tests/support/small_training.sh
source tests/support/small_training.sh
(cd "$folder" && make_training >/dev/null)
# Settings that allow any number of ranks and make results independent of it.
settings=(--checkpoint.save_interval=7
  --parallel.tensor_model_parallel_size=1 --parallel.zero_stage=0)

# train <ranks> <checkpoint folder> [option ...]: trains in the background. Sets `job` to the process; the output is in
# $folder/log.
train() {
  local ranks=$1 save=$2
  shift 2
  launch=()
  if [ "$ranks" -gt 1 ]; then launch_ranks "$ranks" --bind-to none; fi
  "${launch[@]}" "$program" pretrain "$folder/run.toml" --checkpoint.save="$save" "${settings[@]}" "$@" >"$folder/log" 2>&1 &
  job=$!
}
# train_uninterrupted <ranks>: trains without interruption in uninterrupted_<ranks>. Sets `seconds` to its duration.
train_uninterrupted() {
  local start
  start=$(date +%s.%N)
  train "$1" "$folder/uninterrupted_$1"
  wait "$job"
  # shellcheck disable=SC2034 # used by the caller
  seconds=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { print b - a }')
}

# rank_processes <ranks>: prints the processes of the ranks of $job.
rank_processes() { if [ "$1" -gt 1 ]; then pgrep -P "$job" || true; else echo "$job"; fi; }
# signal_by_clock <ranks> <signal> <max seconds>: signals a rank of $job at a random time after its start. Fails if it
# has exited.
signal_by_clock() {
  local processes
  sleep "$(awk -v max="$3" -v r="$RANDOM" 'BEGIN { print 0.05 + max * r / 32768 }')"
  mapfile -t processes < <(rank_processes "$1")
  [ ${#processes[@]} -gt 0 ] && kill "-$2" "${processes[RANDOM % ${#processes[@]}]}" 2>/dev/null
}

# reached <folder>: prints the iteration of the newest checkpoint, 0 if there is none.
reached() {
  local newest
  newest=$(cat "$1/latest" 2>/dev/null || echo iter_0)
  echo $((10#${newest#iter_}))
}
# is_identical <folder> <folder>: compares their newest checkpoints bitwise.
is_identical() { "$program" checkpoint diff "$1" "$2" | grep -q ' tensors compared, 0 differ'; }
