#!/usr/bin/env bash
# Races megatron_cpp against PyTorch on this machine: the same model, tokens per step, precision and threads, in turn.
#   bench/vs_torch.sh [--python=PATH] [--rounds=N] [--output=FILE] [14m|124m ...]
# PyTorch runs bench/torch_gpt.py with torch.compile; PATH is a Python with torch and numpy (python3 -m venv ~/peer &&
# ~/peer/bin/pip install torch numpy). Each round runs both once; the table has the median of the ratios. One JSON line per run
# goes to FILE (default bench/results/vs_torch_<date>.jsonl).
set -euo pipefail
cd "$(dirname "$0")/.."

python=python3
rounds=3
output=bench/results/vs_torch_$(date +%Y-%m-%d).jsonl
models=()
for argument in "$@"; do
  case $argument in
    --python=*) python=${argument#*=} ;;
    --rounds=*) rounds=${argument#*=} ;;
    --output=*) output=${argument#*=} ;;
    14m | 124m) models+=("$argument") ;;
    *)
      echo "unknown argument $argument; see the head of $0" >&2
      exit 2
      ;;
  esac
done
[ ${#models[@]} -gt 0 ] || models=(14m 124m)
"$python" -c 'import torch' 2>/dev/null || {
  echo "$python has no torch; give --python=PATH" >&2
  exit 2
}
scripts/build.sh release megatron_cpp >/dev/null
mkdir -p "$(dirname "$output")"

field() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" | head -n 1; }
median() { sort -g | awk '{ v[NR] = $1 } END { print (NR % 2) ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

processor=$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)
printf '{"processor": "%s", "cores": %s, "date": "%s"}\n' "$processor" "$(nproc)" "$(date -u +%FT%TZ)" >>"$output"
printf '%-6s %-5s %14s %14s %8s %12s %22s\n' model dtype tokens/s PyTorch ratio 'of GEMM-only' 'peak GiB (PyTorch)'
for model in "${models[@]}"; do
  case $model in
    14m) shape=(--seq 256 --batch 8) ;;
    124m) shape=(--seq 1024 --batch 1) ;;
  esac
  for dtype in fp32 bf16; do
    ours=() theirs=() ratios=() shares=() peaks=() peer_peaks=()
    for ((round = 0; round < rounds; ++round)); do
      a=$(build/release/megatron_cpp bench step "bench/gpt2_$model.toml" --training.precision=$dtype --repeats=5 --warmup=2 --json)
      b=$("$python" bench/torch_gpt.py --model "gpt2-$model" "${shape[@]}" --dtype $dtype --compile --steps 5 --warmup 2 2>/dev/null)
      printf '{"model": "%s", "dtype": "%s", "megatron_cpp": %s, "pytorch": %s}\n' "$model" $dtype "$a" "$b" >>"$output"
      # Our JSON has no space after the colon, PyTorch's has.
      ours+=("$(field tokens_per_s <<<"$a")") theirs+=("$(field tokens_per_s <<<"$b")")
      ratios+=("$(awk "BEGIN { print ${ours[-1]} / ${theirs[-1]} }")")
      shares+=("$(field share_of_gemm_only <<<"$a")")
      peaks+=("$(field peak_gib <<<"$a")") peer_peaks+=("$(field peak_gib <<<"$b")")
    done
    printf '%-6s %-5s %14.1f %14.1f %8.2f %11.0f%% %12.2f (%.2f)\n' "$model" $dtype \
      "$(printf '%s\n' "${ours[@]}" | median)" "$(printf '%s\n' "${theirs[@]}" | median)" \
      "$(printf '%s\n' "${ratios[@]}" | median)" "$(awk "BEGIN { print 100 * $(printf '%s\n' "${shares[@]}" | median) }")" \
      "$(printf '%s\n' "${peaks[@]}" | median)" "$(printf '%s\n' "${peer_peaks[@]}" | median)"
  done
done
