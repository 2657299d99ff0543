#!/usr/bin/env bash
# Measures the cost of experts: tokens/s of a model with 8 experts, two per token, relative to the dense model with the
# same number of active parameters and to Hugging Face's Mixtral in PyTorch; and of two ranks with expert parallelism, evenly
# loaded, relative to one rank with two threads. Runs alternate.
#
#   bench/moe.sh [--rounds=N] [--dtypes="fp32 bf16"] [--batches="8 32"] [--python=PATH] [--program=PATH]
#     [option of megatron_cpp bench step ...]
#
#   --python=PATH  a Python with torch and transformers; without it PyTorch is not measured
#
# Prints JSON lines on standard output and medians of the ratios over the rounds on standard error.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=3
dtypes="fp32 bf16"
batches="8 32"
python=
program=
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options rounds dtypes batches python program -- "$@"
for dtype in $dtypes; do
  [[ $dtype = fp32 || $dtype = bf16 ]] || { echo "--dtypes: $dtype is neither fp32 nor bf16" >&2 && exit 2; }
done
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
launch_ranks 2 --bind-to none
results=$(mktemp)
trap 'rm -f "$results"' EXIT
# With expert parallelism, the rank with the most tokens determines the time. An untrained router would be uneven.
even=(--model.moe_router_force_load_balancing=true)
experts=(--model.num_experts=8 --model.moe_router_topk=2 --model.moe_ffn_hidden_size=768 --model.moe_aux_loss_coeff=0.01)

record() { # <name> <dtype> <batch> <JSON>
  echo "{\"what\": \"$1\", \"dtype\": \"$2\", \"batch\": $3, \"result\": $4}" | tee -a "$results"
}
run() { # <name> <dtype> <samples per step> <samples per microbatch> <launcher word ...> -- <option ...>
  record "$1" "$2" "$3" "$(bench_json step bench/moe_14m.toml "${@:5}" --training.precision="$2" --training.micro_batch_size="$4" \
    --training.global_batch_size="$3" --repeats=5 --warmup=2 "${options[@]}")"
}

# shellcheck disable=SC2119
environment_json
for ((round = 0; round < rounds; ++round)); do
  for dtype in $dtypes; do
    for batch in $batches; do
      run dense "$dtype" "$batch" "$batch" env -- --device.num_threads=2
      run experts "$dtype" "$batch" "$batch" env -- --device.num_threads=2 "${experts[@]}"
      run even "$dtype" "$batch" "$batch" env -- --device.num_threads=2 "${experts[@]}" "${even[@]}"
      run even_ep2 "$dtype" "$batch" $((batch / 2)) "${launch[@]}" -- --device.num_threads=1 "${experts[@]}" "${even[@]}" \
        --parallel.expert_model_parallel_size=2
    done
    [ -z "$python" ] || record pytorch "$dtype" 8 "$("$python" bench/torch_mixtral.py --dtype "$dtype" --batch 8 --compile 2>/dev/null)"
  done
done

# Extracts name, dtype, batch and tokens/s per line, then the ratios of each round.
sed -nE 's/.*"what": "([^"]*)", "dtype": "([^"]*)", "batch": ([0-9]*),.*"tokens_per_s": ?([^,}]*).*/\1 \2 \3 \4/p' "$results" | awk '
  { speed[$1, $2, $3] = $4 }
  $1 == "experts" { print $2, $3, "time_by_dense", speed["dense", $2, $3] / $4 }
  $1 == "even_ep2" { print $2, $3, "ep2_by_one_rank", $4 / speed["even", $2, $3] }
  $1 == "pytorch" { print $2, $3, "speed_by_pytorch", speed["experts", $2, $3] / $4 }' |
  sort -k1,1 -k2,2n -k3,3 -k4,4g | awk "$median_of"'
    function flush() { if (n) printf "%s %3d samples  %-18s %.3f\n", dtype, batch, what, median_of(ratio, n) }
    $1 != dtype || $2 != batch || $3 != what { flush(); dtype = $1; batch = $2; what = $3; n = 0 }
    { ratio[++n] = $4 }
    END { flush() }' >&2
