# A small training that is interrupted again and again, in a temporary $folder, and what must come of it; to be sourced from the
# root of the sources. $program trains; SEED chooses the moments.
# shellcheck shell=bash disable=SC2154 # what is not set here the caller sets

# shellcheck source=bench/lib/machine.sh
source bench/lib/machine.sh
RANDOM=${SEED:-1}
program=${MEGATRON_CPP:-$PWD/build/release/megatron_cpp}
[ -n "${MEGATRON_CPP:-}" ] || scripts/build.sh release megatron_cpp >/dev/null
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
root=$PWD MEGATRON_CPP=$(realpath "$program")
# shellcheck source=tests/support/small_training.sh
source tests/support/small_training.sh
(cd "$folder" && make_training >/dev/null)
# For any number of ranks, and the same training on one and on two.
settings=(--checkpoint.save_interval=7
  --parallel.tensor_model_parallel_size=1 --parallel.zero_stage=0)

# train <ranks> <folder to save in> [option ...]: in the background; its process is $job, its output in log
train() {
  local ranks=$1 save=$2
  shift 2
  launch=()
  if [ "$ranks" -gt 1 ]; then launch_ranks "$ranks" --bind-to none; fi
  "${launch[@]}" "$program" pretrain "$folder/run.toml" --checkpoint.save="$save" "${settings[@]}" "$@" >"$folder/log" 2>&1 &
  job=$!
}
# train_whole <ranks>: one that is left alone, in whole_<ranks>; sets `seconds`, the time that it takes.
train_whole() {
  local start
  start=$(date +%s.%N)
  train "$1" "$folder/whole_$1"
  wait "$job"
  # shellcheck disable=SC2034 # for the caller
  seconds=$(awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { print b - a }')
}

# The processes of the ranks of $job.
rank_processes() { if [ "$1" -gt 1 ]; then pgrep -P "$job" || true; else echo "$job"; fi; }
# signal_by_clock <ranks> <signal> <most seconds>: to a rank of $job, some time after its start; whether it was still there.
signal_by_clock() {
  local processes
  sleep "$(awk -v most="$3" -v r="$RANDOM" 'BEGIN { print 0.05 + most * r / 32768 }')"
  mapfile -t processes < <(rank_processes "$1")
  [ ${#processes[@]} -gt 0 ] && kill "-$2" "${processes[RANDOM % ${#processes[@]}]}" 2>/dev/null
}

# Where the newest checkpoint in a folder stands.
reached() {
  local newest
  newest=$(cat "$1/latest" 2>/dev/null || echo iter_0)
  echo $((10#${newest#iter_}))
}
# same_bits <folder> <folder>: of their newest checkpoints.
same_bits() { "$program" checkpoint diff "$1" "$2" | grep -q ' tensors compared, 0 differ'; }
