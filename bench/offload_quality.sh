#!/usr/bin/env bash
# What smaller moments and gradients do to a training: held-out bits per byte of the quick start after so many steps, with moments in fp32,
# bf16 and a byte, and with gradients in bf16, and how far each is from the first. JSON lines on standard output; fails where one is
# further away than half a percent.
#   bench/offload_quality.sh [--iterations=N] [option of megatron_cpp pretrain ...]
set -euo pipefail
cd "$(dirname "$0")/.."

iterations=200
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options iterations -- "$@"
program=${MEGATRON_CPP:-}
build_program
# shellcheck source=bench/lib/machine.sh
source bench/lib/machine.sh
# shellcheck source=bench/lib/quickstart_text.sh
source bench/lib/quickstart_text.sh
own=$(mktemp -d)
trap 'rm -rf "$own"' EXIT

prepare_text "$own"

# run <name> <option ...>: bits per byte of what was held out.
run() {
  local name=$1
  shift
  "$program" pretrain configs/quickstart.toml --data.train_data_path="$own/train_text_document" \
    --data.valid_data_path="$own/valid_text_document" --data.tokenizer_model="$own/tokenizer.model" \
    --checkpoint.save="$own/$name" --checkpoint.save_interval=0 --training.train_iters="$iterations" --training.eval_iters=0 \
    "$@" "${options[@]}" >"$own/$name.log" 2>&1 || { cat "$own/$name.log" >&2 && exit 1; }
  held_out_bits "$own/$name" "$own"
}

machine_json
base=$(run fp32)
echo "{\"iterations\": $iterations, \"states\": \"fp32\", \"bits_per_byte\": $base}"
failed=0
report() {
  local bits
  bits=$(run "$@")
  awk -v name="$1" -v bits="$bits" -v base="$base" -v n="$iterations" 'BEGIN {
    printf "{\"iterations\": %d, \"states\": \"%s\", \"bits_per_byte\": %s, \"further\": %.5f}\n", n, name, bits, bits / base - 1
    exit (bits / base - 1 > 0.005) }' || failed=1
}
report bf16 --optimizer.exp_avg_dtype=bf16 --optimizer.exp_avg_sq_dtype=bf16
report uint8 --optimizer.exp_avg_dtype=uint8 --optimizer.exp_avg_sq_dtype=uint8
report uint8_bf16_grads --optimizer.exp_avg_dtype=uint8 --optimizer.exp_avg_sq_dtype=uint8 --optimizer.main_grads_dtype=bf16 --parallel.zero_stage=2
exit $failed
