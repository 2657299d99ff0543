#!/usr/bin/env bash
# Trains a GPT-2 of 1.5B parameters (configs/gpt2_1558m.toml: 28 GB of weights, gradients and state with bf16 and AdamW)
# in an address space of 8 GiB with the optimizer state on a disk. Measures peak memory, seconds per step, and the share
# of the disk's bandwidth (of_plain), which is measured with direct writes and reads before and after. The same training
# without offload must be rejected with the advice to offload.
#
#   bench/offload.sh [--folder=DIR] [--limit_gib=N] [--iterations=N] [--seq_length=N] [option of megatron_cpp pretrain ...]
#
#   --folder=DIR   a folder on the disk to measure, with 20 GB of free space (default: a temporary folder)
#
# Prints JSON lines on standard output.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=
limit_gib=8
iterations=3
seq_length=128
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options folder limit_gib iterations seq_length -- "$@"
program=${MEGATRON_CPP:-}
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
work=$(mktemp -d ${folder:+-p "$folder"})
trap 'rm -rf "$work"' EXIT
folder=$work

environment_json
"$program" tokenizer train --input=data/tinyshakespeare.txt --output="$work/tokenizer.model" --vocab_size=2048 >/dev/null
"$program" preprocess --input=data/tinyshakespeare.txt --text_document=paragraph --output_prefix="$work/text" \
  --tokenizer_model="$work/tokenizer.model" >/dev/null

train=("$program" pretrain configs/gpt2_1558m.toml --data.data_path="$work/text_text_document" --checkpoint.save=
  --training.precision=bf16 --model.seq_length="$seq_length" --model.max_position_embeddings=1024 --training.train_iters="$iterations" --training.micro_batch_size=1
  --training.global_batch_size=1 --training.recompute_granularity=full --training.eval_interval=0 --training.eval_iters=0
  --optimizer.lr_warmup_iters=0 --optimizer.lr_decay_iters=0
  --parallel.zero_stage=2 --optimizer.main_grads_dtype=bf16 --logging.metrics_path="$work/metrics.jsonl"
  --logging.log_interval=1 "${options[@]}")
offload=(--optimizer.offload=file --optimizer.offload_folder="$work/state")

# plain <MiB>: prints the MiB/s of direct transfers while one file is written and another is read, as in an optimizer
# update.
plain() {
  local begin end reading
  dd if=/dev/zero of="$work/read" bs=4M count=$(($1 / 4)) oflag=direct status=none
  begin=$(date +%s.%N)
  dd if="$work/read" of=/dev/null bs=4M iflag=direct status=none &
  reading=$!
  dd if=/dev/zero of="$work/written" bs=4M count=$(($1 / 4)) oflag=direct status=none
  wait $reading
  end=$(date +%s.%N)
  rm -f "$work/read" "$work/written"
  awk "BEGIN { print 2 * $1 / ($end - $begin) }"
}

first=$(plain 4096)
(
  ulimit -v $((limit_gib << 20))
  /usr/bin/time -f '{"peak_rss_kib": %M, "seconds": %e}' -o "$work/time.json" "${train[@]}" "${offload[@]}" >"$work/log" 2>&1
) || { cat "$work/log" >&2 && exit 1; }
last=$(plain 4096)
cat "$work/log" >&2
grep '"type": *"train"' "$work/metrics.jsonl" || true
state_mib=$(grep -oE 'optimizer state: .*, [0-9.]+ GiB' "$work/log" | grep -oE '[0-9.]+ GiB' | awk '{ print $1 * 1024 }')
step_s=$(sed -n 's/.*"elapsed_ms": *\([0-9.]*\).*/\1/p' "$work/metrics.jsonl" | sort -g | awk "$median_of"'{ ms[NR] = $1 } END { print median_of(ms, NR) / 1000 }')
awk -v step="$step_s" -v state="$state_mib" -v first="$first" -v last="$last" -v limit="$limit_gib" -v process="$(cat "$work/time.json")" 'BEGIN {
  rate = 2 * state / step
  printf "{\"limit_gib\": %s, \"state_mib\": %s, \"step_s\": %s, \"mib_per_s\": %.0f, \"plain_mib_per_s\": [%s, %s], \"of_plain\": %.3f, \"process\": %s}\n",
    limit, state, step, rate, first, last, 2 * rate / (first + last), process }'

if (ulimit -v $((limit_gib << 20)) && "${train[@]}") >"$work/refused" 2>&1; then
  echo "training without offload was not rejected" >&2
  exit 1
fi
grep -q 'optimizer.offload' "$work/refused" || { cat "$work/refused" >&2 && exit 1; }
echo "{\"without_offload\": \"$(grep -o 'not enough memory.*' "$work/refused" | head -c 600 | tr -d '"')\"}"
