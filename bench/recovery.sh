#!/usr/bin/env bash
# Measures how fast a run continues after a failure, and how many finished steps it loses, with checkpoints in the memory
# of two nodes and with checkpoints on a disk. Two nodes are simulated on this host: separate folders in /dev/shm. A
# failure is SIGKILL for one rank, or for all ranks of a node, whose folder is then removed. scripts/launch.sh restarts
# the run. Then simulates the goodput of a large run with random failures (`megatron_cpp plan --goodput`).
#
#   bench/recovery.sh [--ranks=16] [--repeats=5] [--disk_interval=20] [--program=PATH] [option of megatron_cpp pretrain ...]
#
# Prints JSON lines on standard output: for each kind of checkpoint and failure the median and maximum of the seconds from
# the kill to the end of the first step after it, of the seconds until the ranks are restarted, and of the lost steps.
# Exit code 1: a run did not continue.
set -euo pipefail
cd "$(dirname "$0")/.."

ranks=16
repeats=5
disk_interval=20
program=
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options ranks repeats disk_interval program -- "$@"
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
program=$(realpath "$program")
export MEGATRON_CPP=$program
work=$(mktemp -d)
memory=$(mktemp -d /dev/shm/megatron_cpp-XXXXXX)
launcher=""
cleanup() {
  [ -z "$launcher" ] || { kill "$launcher" && kill "$launcher"; } 2>/dev/null || true
  rm -rf "$work" "$memory"
}
trap cleanup EXIT

"$program" tokenizer train --input=data/tinyshakespeare.txt --output="$work/tokenizer.model" --vocab_size=1024 >/dev/null
"$program" preprocess --input=data/tinyshakespeare.txt --text_document=paragraph --output_prefix="$work/text" \
  --tokenizer_model="$work/tokenizer.model" >/dev/null

# start_run <checkpoint option ...>: starts a run that does not end by itself. Sets `launcher` and `output`.
start_run() {
  rm -rf "$work/run" "${memory:?}"/*
  output=$work/output
  scripts/launch.sh configs/quickstart.toml -n "$ranks" --max_restarts=1000 --log="$work/launch.log" \
    --data.train_data_path="[\"$work/text_text_document\"]" --data.valid_data_path="[]" \
    --data.tokenizer_model="$work/tokenizer.model" --checkpoint.save="$work/run" --device.num_threads=1 \
    --training.micro_batch_size=1 --training.global_batch_size="$ranks" --training.train_iters=20000 \
    --training.eval_interval=0 --training.eval_iters=0 --logging.log_interval=1 --parallel.zero_stage=1 "$@" \
    "${options[@]}" >"$output" 2>&1 </dev/null &
  launcher=$!
}
end_run() {
  kill "$launcher" 2>/dev/null || true
  sleep 1
  kill "$launcher" 2>/dev/null || true
  wait "$launcher" 2>/dev/null || true
  launcher=""
}

steps() { grep -c '\] iteration ' "$output" || true; }             # prints the number of steps that the run has logged
last_step() { sed -n 's/.*\] iteration *\([0-9]*\)\/.*/\1/p' "$output" | tail -n 1; } # prints the last one
# wait_for_steps <n>: waits until n more steps are logged. Fails after two minutes, or if the run has ended.
wait_for_steps() {
  local wanted=$(($(steps) + $1)) end=$((SECONDS + 120))
  while [ "$(steps)" -lt "$wanted" ]; do
    if [ "$SECONDS" -ge "$end" ] || ! kill -0 "$launcher" 2>/dev/null; then
      tail -n 30 "$output" >&2
      return 1
    fi
    sleep 0.02
  done
}

# processes_of <first rank> <last rank>: prints the processes of these ranks.
processes_of() {
  local process rank
  for process in $(pgrep -f "checkpoint.save=$work/run"); do
    [ "$(readlink "/proc/$process/exe")" = "$program" ] || continue
    rank=$(tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | sed -n 's/^OMPI_COMM_WORLD_RANK=//p')
    if [ -n "$rank" ] && [ "$rank" -ge "$1" ] && [ "$rank" -le "$2" ]; then echo "$process"; fi
  done
}

# fail <rank|node>: kills and waits until a step has finished. Prints seconds until that step, seconds until the restart
# of the ranks, and lost steps.
fail() {
  local killed start before restarts restarted="" resumed rank=$((RANDOM % ranks))
  if [ "$1" = rank ]; then
    killed=$(processes_of "$rank" "$rank")
  else
    killed=$(processes_of $((ranks / 2)) "$ranks")
  fi
  restarts=$(grep -c 'resuming from' "$output" || true)
  # shellcheck disable=SC2086 # several processes
  kill -KILL $killed
  start=$(date +%s.%N)
  if [ "$1" = node ]; then rm -rf "$memory/node_1"; fi
  until [ "$(grep -c 'resuming from' "$output" || true)" -gt "$restarts" ]; do
    if ! kill -0 "$launcher" 2>/dev/null; then
      tail -n 30 "$output" >&2
      return 1
    fi
    sleep 0.02
  done
  restarted=$(date +%s.%N)
  before=$(awk '/resuming from/ { line = last } /\] iteration / { last = $0 } END { print line }' "$output" |
    sed 's/.*\] iteration *\([0-9]*\)\/.*/\1/')
  resumed=$(sed -n 's/.*resuming from .*iter_0*\([0-9][0-9]*\).*/\1/p' "$output" | tail -n 1)
  wait_for_steps 1
  awk -v a="$start" -v b="$(date +%s.%N)" -v c="$restarted" -v lost=$((before - resumed)) 'BEGIN { print b - a, c - a, lost }'
}

# measure <memory|disk> <rank|node> <checkpoint option ...>
measure() {
  local checkpoints=$1 failure=$2 repeat
  shift 2
  start_run "$@"
  wait_for_steps 5
  : >"$work/times"
  for ((repeat = 0; repeat < repeats; ++repeat)); do
    wait_for_steps $((disk_interval + RANDOM % disk_interval))
    fail "$failure" >>"$work/times"
  done
  end_run
  column() { awk -v k="$1" '{ print $k }' "$work/times"; }
  printf '{"checkpoints": "%s", "failure": "%s", "ranks": %d, "failures": %d, "to_first_step_s": %.2f, ' \
    "$checkpoints" "$failure" "$ranks" "$repeats" "$(column 1 | median)"
  printf '"max_to_first_step_s": %.2f, "to_restart_s": %.2f, "lost_steps": %s, "max_lost_steps": %s}\n' \
    "$(column 1 | sort -g | tail -n 1)" "$(column 2 | median)" "$(column 3 | median)" "$(column 3 | sort -g | tail -n 1)"
}

# shellcheck disable=SC2119
environment_json
in_memory=(--checkpoint.save_interval=1000 --checkpoint.local_save="$memory" --checkpoint.local_save_interval=1
  --checkpoint.local_replicas=1 --checkpoint.local_ranks_per_node=$((ranks / 2)))
measure memory rank "${in_memory[@]}"
measure memory node "${in_memory[@]}"
measure "memory, async_save" rank "${in_memory[@]}" --checkpoint.async_save
measure disk rank --checkpoint.save_interval="$disk_interval" --checkpoint.async_save

"$program" plan configs/llama_70b.toml --hardware=h100_sxm --world_size=4096 --training.global_batch_size=1024 --predict \
  --parallel.tensor_model_parallel_size=8 --parallel.pipeline_model_parallel_size=8 --parallel.zero_stage=1 \
  --mtbf_hours=20000 --save_seconds=20 --restart_seconds=60 --goodput |
  awk '/^  (on disks|in memory) +[0-9]/ { best = $NF == "best" ? ", \"is_best\": true" : ""; sub(/ *%.*/, ""); n = split($0, w)
    printf "{\"simulated_ranks\": 4096, \"checkpoints\": \"%s %s\", \"interval_steps\": %s, \"disk_interval_steps\": %s, ", w[1], w[2], w[3], w[4]
    printf "\"lost_steps\": %s, \"goodput_percent\": %s%s}\n", w[n - 1], w[n], best }'
