#!/usr/bin/env bash
# Compares the grouped GEMMs of evenly loaded experts with one GEMM of the same number of tokens, whose weights are an
# eighth as large, and with one GEMM per expert, for the sizes of the 14M and the 124M model.
#
#   bench/grouped.sh [--rounds=N] [--program=PATH] [option of megatron_cpp bench ops ...]
#
# Prints JSON lines on standard output, and medians over the rounds of grouped time / other time on standard error.
set -euo pipefail
cd "$(dirname "$0")/.."

rounds=3
program=
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options rounds program -- "$@"
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
results=$(mktemp)
trap 'rm -f "$results"' EXIT

# shellcheck disable=SC2119
environment_json
for ((round = 0; round < rounds; ++round)); do
  for model in 14m 124m; do
    for dtype in fp32 bf16; do
      result=$(bench_json ops "bench/gpt2_$model.toml" -- --training.precision=$dtype --repeats=15 "${options[@]}")
      # Keeps only rows of GEMMs.
      rows=$(sed -E 's/.*"rows":\[(.*)\].*/\1/; s/\},\{/}\n{/g' <<<"$result" | grep -E '"name":"(grouped_|matmul)' | paste -sd,)
      echo "{\"model\": \"$model\", \"dtype\": \"$dtype\", \"rows\": [$rows]}" | tee -a "$results"
    done
  done
done

sed -E 's/[{]"model": "([^"]*)", "dtype": "([^"]*)", "rows": \[(.*)\][}]/\1 \2\n\3/; s/\},\{/}\n{/g' "$results" | awk -F'[":,]+' '
  function compare(what, suffix) {
    print model, what, "by_one_gemm", $5 / time["matmul" suffix]
    print model, what, "by_gemms", $5 / time["matmul by expert" suffix]
  }
  /uneven/ { next }
  !/name/ { gsub(" ", "_"); model = $0; next }
  { time[$3] = $5 }
  $3 == "grouped_matmul" { compare("forward", "") }
  $3 == "grouped_matmul dgrad" { compare("dgrad", " dgrad") }
  $3 == "grouped_weight_gradient" { compare("wgrad", " wgrad") }' |
  sort -k1,1 -k2,2 -k3,3 -k4,4g | awk "$median_of"'
    function flush() { if (n) printf "%-10s %-8s %-15s %.3f\n", model, what, peer, median_of(ratio, n) }
    $1 != model || $2 != what || $3 != peer { flush(); model = $1; what = $2; peer = $3; n = 0 }
    { ratio[++n] = $4 }
    END { flush() }' >&2
