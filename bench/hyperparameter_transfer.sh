#!/usr/bin/env bash
# Measures the best learning rate of models of several widths, with the standard parametrization and with muP.
#
#   bench/hyperparameter_transfer.sh [--widths=64,128,256,512] [--seeds=1,2,3] [--iterations=N] [--results=FILE]
#     [--svg=FILE] [option of megatron_cpp pretrain ...]
#
# Trains the model of bench/coordinate_check.toml on the text of the quick start, with learning rates that are powers of
# the square root of 2 and a linear decay to 0. For each width it begins with the best rate of the previous width and
# continues until both neighbors of the best rate have a higher loss on the held-out text. The reported best rate is the
# minimum of the parabola through these three losses, which are means over the seeds.
#
#   --results=FILE  file of earlier lines of standard output: runs in it are not repeated, new ones are appended
#
# Prints JSON lines on standard output, and on standard error the best rates, their range and the losses.
set -euo pipefail
cd "$(dirname "$0")/.."

widths=64,128,256,512
seeds=1,2,3
iterations=200
results=
svg=
program=${MEGATRON_CPP:-}
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options widths seeds iterations results svg -- "$@"
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
# shellcheck source=bench/lib/quickstart_text.sh
source bench/lib/quickstart_text.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
prepare_text "$folder"
results=${results:-$folder/results}
touch "$results"
base=${widths%%,*}
first_half_octave=-13 # where the search for the best rate of the first width begins: 2^-6.5

# exponent_of <half octaves>: prints the exponent of 2.
exponent_of() { awk -v halves="$1" 'BEGIN { print halves / 2 }'; }

# key_of <parametrization> <width> <exponent> <seed>: prints the beginning of the line of a run.
key_of() {
  echo "\"parametrization\": \"$1\", \"hidden_size\": $2, \"log2_lr\": $3, \"seed\": $4, \"iterations\": $iterations"
}

# train <parametrization> <width> <exponent> <seed>: trains and evaluates, unless the results contain the run.
train() {
  local key lr log loss
  key=$(key_of "$@")
  ! grep -qF "$key" "$results" || return 0
  lr=$(awk -v e="$3" 'BEGIN { printf "%.10g", 2 ^ e }')
  log=$folder/log
  local parametrization=()
  [ "$1" != mup ] ||
    parametrization=(--model.use_mup "--model.mup_base_hidden_size=$base" --model.mup_base_head_dim=32)
  "$program" pretrain bench/coordinate_check.toml --model.hidden_size="$2" --model.num_attention_heads=$(($2 / 32)) \
    --model.ffn_hidden_size=$(($2 * 11 / 4)) --model.init_method_std=0.1 "${parametrization[@]}" \
    --training.precision=bf16 --training.micro_batch_size=8 --training.global_batch_size=8 --training.seed="$4" \
    --training.train_iters="$iterations" --training.eval_interval="$iterations" --training.eval_iters=64 \
    --optimizer.lr="$lr" --optimizer.min_lr=0 --optimizer.lr_decay_style=linear --optimizer.lr_warmup_iters=$((iterations / 10)) \
    --data.train_data_path="$folder/train_text_document" --data.valid_data_path="$folder/valid_text_document" \
    --data.tokenizer_model="$folder/tokenizer.model" --checkpoint.save="$folder/run" --checkpoint.save_interval=0 \
    "${options[@]}" >"$log" 2>&1 </dev/null || { cat "$log" >&2 && exit 1; }
  loss=$(sed -n 's/.*"validation".*"lm_loss":\([0-9.]*\).*/\1/p' "$folder/run/metrics.jsonl")
  [ -n "$loss" ] || { echo "no loss in the metrics of $key" >&2 && exit 1; }
  rm -rf "$folder/run"
  echo "{$key, \"validation_loss\": $loss}" | tee -a "$results"
}

# mean_loss <parametrization> <width> <exponent>: trains with all seeds. Sets `loss` to the mean of the losses.
mean_loss() {
  local seed sum=0
  for seed in ${seeds//,/ }; do
    train "$1" "$2" "$3" "$seed"
    sum+=" + $(sed -n "s/.*$(key_of "$1" "$2" "$3" "$seed"), \"validation_loss\": \(.*\)}/\1/p" "$results")"
  done
  loss=$(awk "BEGIN { printf \"%.6f\", ($sum) / $(wc -w <<<"${seeds//,/ }") }")
}

# find_best <parametrization> <width> <half octaves>: searches from this rate. Appends a line to $folder/best:
# parametrization, width, exponent of the best rate, smallest loss. Sets `best` to the half octaves of the best rate
# of a run.
find_best() {
  local -A losses
  local e next=$3
  best=$3
  while [ -n "$next" ]; do
    mean_loss "$1" "$2" "$(exponent_of "$next")"
    losses[$next]=$loss
    for e in "${!losses[@]}"; do
      if awk "BEGIN { exit !(${losses[$e]} < ${losses[$best]}) }"; then best=$e; fi
    done
    next=
    for e in $((best + 1)) $((best - 1)); do [ -n "${losses[$e]:-}" ] || next=$e; done
  done
  awk -v p="$1" -v w="$2" -v e="$best" -v a="${losses[$((best - 1))]}" -v b="${losses[$best]}" -v c="${losses[$((best + 1))]}" \
    'BEGIN { shift = (a - c) / (2 * (a - 2 * b + c)); print p, w, (e + shift) / 2, b - (a - c) * shift / 4 }' >>"$folder/best"
}

# draw_chart: prints an SVG with one line per width in a panel per parametrization, and a mark at each best rate.
draw_chart() {
  sed -n 's/.*"parametrization": "\([a-z]*\)", "hidden_size": \([0-9]*\), "log2_lr": \(-*[0-9.]*\), .*"validation_loss": \([0-9.]*\)}/run \1 \2 \3 \4/p' "$results" |
    cat - <(sed 's/^/best /' "$folder/best") | awk -v widths="$widths" -v iterations="$iterations" -f bench/lib/transfer_chart.awk
}

environment_json | tee -a "$results"
for parametrization in mup standard; do
  best=$first_half_octave
  for width in ${widths//,/ }; do find_best "$parametrization" "$width" "$best"; done
done
awk '{ printf "%-9s hidden_size %4d: best lr 2^%.2f, loss %.3f\n", $1, $2, $3, $4 }
  { if (!($1 in low) || $3 < low[$1]) low[$1] = $3; if (!($1 in high) || $3 > high[$1]) high[$1] = $3 }
  END { for (p in low) printf "%-9s best rates within a factor of %.2f\n", p, 2 ^ (high[p] - low[p]) }' "$folder/best" >&2
[ -z "$svg" ] || draw_chart >"$svg"
