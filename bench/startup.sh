#!/usr/bin/env bash
# Measures the time to the first step and the host memory per rank in addition to its tensors, for different numbers of
# ranks on this host: tp 2 x pp 2 x dp of a small model, with dataset, tokenizer and checkpoint folder.
#
#   bench/startup.sh [--ranks="1 4 16 64"] [--threads=256] [--program=PATH] [option of megatron_cpp pretrain ...]
#
# Prints JSON lines on standard output: seconds from the launch to the beginning of the first step, and the maximum over
# the ranks of private memory in MiB (RssAnon; the binary and shared memory exist once per host); then the cost of
# creating the groups of this layout (`megatron_cpp bench groups`), finally with --threads ranks as threads (0: none).
set -euo pipefail
cd "$(dirname "$0")/.."

ranks="1 4 16 64"
threads=256
program=
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options ranks threads program -- "$@"
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$program" tokenizer train --input=data/tinyshakespeare.txt --output="$work/tokenizer.model" --vocab_size=1024 >/dev/null
"$program" preprocess --input=data/tinyshakespeare.txt --text_document=paragraph --output_prefix="$work/text" \
  --tokenizer_model="$work/tokenizer.model" >/dev/null

# watch_memory <file>: until the file exists, samples the private memory of the program's processes once a second. Writes
# the maximum in MiB. All ranks are read by one process, because a process per rank would delay the start it measures.
watch_memory() {
  local max=0 size statuses
  until [ -e "$1" ]; do
    mapfile -t statuses < <(pgrep -f "$work/text_text_document" | sed 's|.*|/proc/&/status|')
    size=$(awk -v name="$(basename "$program" | cut -c 1-15)" '/^Name/ { is_rank = $2 == name }
      /^RssAnon/ && is_rank && $2 > max { max = $2 } END { print max + 0 }' "${statuses[@]}" /dev/null 2>/dev/null || true)
    [ "${size:-0}" -le "$max" ] || max=$size
    sleep 1
  done
  echo $((max / 1024)) >"$work/memory"
}

# shellcheck disable=SC2119
environment_json
for n in $ranks; do
  rm -rf "$work/checkpoints" "$work/cache" "$work/end" "$work/metrics.jsonl"
  layout=() groups=(--tensor_model_parallel_size=1 --pipeline_model_parallel_size=1)
  [ "$n" -lt 4 ] || { layout=(--parallel.tensor_model_parallel_size=2 --parallel.pipeline_model_parallel_size=2) && groups=(); }
  watch_memory "$work/end" &
  start=$(date +%s.%N)
  MEGATRON_CPP=$program scripts/pretrain.sh configs/quickstart.toml -n "$n" --data.train_data_path="[\"$work/text_text_document\"]" \
    --data.valid_data_path="[]" --data.tokenizer_model="$work/tokenizer.model" --checkpoint.save="$work/checkpoints" \
    --device.num_threads=1 --training.micro_batch_size=1 --training.global_batch_size="$n" --training.train_iters=2 --optimizer.lr_warmup_iters=0 \
    --training.eval_interval=0 --training.eval_iters=0 --logging.log_interval=1 --logging.metrics_path="$work/metrics.jsonl" "${layout[@]}" "${options[@]}" \
    >"$work/log" 2>&1 || { touch "$work/end" && cat "$work/log" >&2 && exit 1; }
  end=$(date +%s.%N)
  touch "$work/end"
  wait
  first=$(grep -m1 '"type": *"train"' "$work/metrics.jsonl")
  stamp=$(date -d "$(sed -E 's/.*"time": ?"([^"]*)".*/\1/' <<<"$first")" +%s.%N)
  elapsed=$(sed -E 's/.*"elapsed_ms": ?([0-9.]*).*/\1/' <<<"$first")
  echo "{\"ranks\": $n, \"to_first_step_s\": $(awk "BEGIN { print $stamp - $start - $elapsed / 1000 }"), \"first_step_s\":" \
    "$(awk "BEGIN { print $elapsed / 1000 }"), \"whole_run_s\": $(awk "BEGIN { print $end - $start }"), \"rank_mib\": $(cat "$work/memory")}"
  launch_ranks "$n" --bind-to none
  "${launch[@]}" "$program" bench groups --json "${groups[@]}" </dev/null 2>/dev/null | grep '^{'
done
[ "$threads" -eq 0 ] || "$program" bench groups --json --threads="$threads"
