#!/usr/bin/env bash
# What less traffic does to a training: the quick start's model and text for 200 iterations on four ranks, plain and with each
# way to send less, and the bits per byte of the text that was held out. More than 0.5 % from plain is an error; so is any
# difference of the second copy. JSON lines on standard output.
#   bench/traffic_quality.sh [--iterations=N] [option of megatron_cpp pretrain ...]
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
launch_ranks 4 --bind-to none
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

prepare_text "$folder"

# train <name> <option ...>: the bits per byte of the held-out text, also in bits_<name>.
train() {
  local name=$1 bits
  "${launch[@]}" "$program" pretrain configs/quickstart.toml --training.train_iters="$iterations" --training.micro_batch_size=8 \
    --training.eval_iters=0 --training.eval_interval=0 --checkpoint.save_interval=0 --checkpoint.save="$folder/$name" \
    --data.train_data_path="$folder/train_text_document" --data.valid_data_path="$folder/valid_text_document" \
    --data.tokenizer_model="$folder/tokenizer.model" --device.num_threads=1 "${@:2}" "${options[@]}" >"$folder/$name.log" 2>&1 ||
    { cat "$folder/$name.log" >&2 && exit 1; }
  bits=$(held_out_bits "$folder/$name" "$folder")
  echo "{\"traffic\": \"$name\", \"options\": \"${*:2}\", \"iterations\": $iterations, \"bits_per_byte\": $bits}" | tee -a "$folder/results"
}

machine_json "\"load\": \"$(cut -d' ' -f1-3 /proc/loadavg)\""
copy=--parallel.zero_hpz_partition_size=2
weights=--parallel.zero_quantized_weights=true
gradients=--parallel.zero_quantized_gradients=true
train zero1 --parallel.zero_stage=1
train zero1_weights --parallel.zero_stage=1 $weights
train zero1_gradients --parallel.zero_stage=1 $gradients
train zero1_factors --parallel.zero_stage=1 --parallel.power_sgd_rank=16
train zero3 --parallel.zero_stage=3
train zero3_copy --parallel.zero_stage=3 $copy
train zero3_all --parallel.zero_stage=3 $copy $weights $gradients

grep -o '"traffic": "[^"]*"\|"bits_per_byte": [0-9.]*' "$folder/results" | paste - - | tr -d '":' | awk '
  { split($2, word, "_"); if ($2 == word[1]) plain[$2] = $4
    off = $4 / plain[word[1]] - 1
    printf "%-16s %s bits per byte, %+.3f %% from plain\n", $2, $4, 100 * off
    most = word[2] == "copy" ? 0 : 0.005
    if (off > most || off < -most) bad = 1 }
  END { exit bad }' >&2
