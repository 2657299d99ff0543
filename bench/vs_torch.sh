#!/usr/bin/env bash
# Compares training throughput with PyTorch on this host, with the same model, tokens per step, precision and
# threads. Runs alternate.
#
#   bench/vs_torch.sh [--device=cpu|cuda] [--python=PATH] [--program=PATH] [--rounds=N] [--threads=N] [--dtypes="fp32 bf16"] [--tune]
#     [--output=FILE] [model ...]
#
#   model          on a CPU 14m, 124m (GPT-2), mla, gated_delta_net, kimi_delta_attention, mamba (14M parameters), each in
#                  fp32 and bf16; on a GPU gpt2-124m, gpt2-1558m, llama-1b, llama-3b, llama-8b (bf16). llama-8b has 16 of
#                  its 32 layers, because all of it does not fit on one GPU for training
#   --python=PATH  a Python with torch and numpy (python3 -m venv ~/peer && ~/peer/bin/pip install torch numpy); it runs
#                  bench/torch_gpt.py or bench/torch_architectures.py with torch.compile
#   --threads=N    threads of both programs on a CPU (default: all cores); 1 where other programs use the host
#   --dtypes=...   precisions on a CPU; PyTorch is very slow in bf16 on processors without instructions for it
#   --program=PATH a megatron_cpp that is already built
#   --tune         times the algorithms of our GEMMs first; only on a GPU
#   --output=FILE  receives one JSON line per run (default bench/results/vs_torch_<device>_<date>.jsonl)
#
# Prints a table with the medians of the rounds.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh

device=cpu
python=python3
program=
rounds=3
threads=$(nproc)
output=
dtype_list="fp32 bf16"
tuning=()
models=()
fail() {
  echo "$1" >&2
  exit 2
}
for argument in "$@"; do
  case $argument in
    --device=*) device=${argument#*=} ;;
    --python=*) python=${argument#*=} ;;
    --program=*) program=${argument#*=} ;;
    --rounds=*) rounds=${argument#*=} ;;
    --threads=*) threads=${argument#*=} ;;
    --output=*) output=${argument#*=} ;;
    --dtypes=*) dtype_list=${argument#*=} ;;
    --tune) tuning=(--device.gemm_tuning=time) ;;
    14m | 124m | mla | gated_delta_net | kimi_delta_attention | mamba | gpt2-124m | gpt2-1558m | llama-1b | llama-3b | llama-8b) models+=("$argument") ;;
    *) fail "unknown argument $argument; see the header of $0" ;;
  esac
done

case $device in
  cpu)
    preset=release all=(14m 124m mla gated_delta_net kimi_delta_attention mamba)
    read -ra dtypes <<<"$dtype_list"
    for dtype in "${dtypes[@]}"; do
      [[ $dtype = fp32 || $dtype = bf16 ]] || fail "--dtypes: $dtype is neither fp32 nor bf16"
    done
    [ ${#tuning[@]} -eq 0 ] || fail "--tune needs --device=cuda"
    processor=$(cpu_name)
    ;;
  cuda)
    [ "$dtype_list" = "fp32 bf16" ] || fail "--dtypes: measurements on a GPU use bf16"
    preset=cuda all=(gpt2-124m gpt2-1558m llama-1b llama-3b llama-8b) dtypes=(bf16)
    processor=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -n 1 || true)
    [ -n "$processor" ] || fail "--device=cuda: nvidia-smi finds no GPU on this host"
    ;;
  *) fail "--device=$device: must be cpu or cuda" ;;
esac
[ ${#models[@]} -gt 0 ] || models=("${all[@]}")
for model in "${models[@]}"; do
  [[ " ${all[*]} " == *" $model "* ]] || fail "$model: models for --device=$device are ${all[*]}"
done
"$python" -c 'import torch' 2>/dev/null || fail "$python has no torch; set --python=PATH"
if [ "$device" = cuda ]; then
  "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' || fail "the torch of $python finds no GPU"
fi
if [ -z "$program" ]; then
  scripts/build.sh $preset megatron_cpp >/dev/null
  program=build/$preset/megatron_cpp
fi
output=${output:-bench/results/vs_torch_${device}_$(date +%Y-%m-%d).jsonl}
mkdir -p "$(dirname "$output")"
[ ${#tuning[@]} -eq 0 ] || tuning+=("--device.gemm_tuning_file=${output%.jsonl}.gemm")

field() { sed -n "s/.*\"$1\": *\([0-9.]*\).*/\1/p" | head -n 1; }

# Sets `ours` and `theirs`, the arguments of both sides for $model; `theirs` begins with the script of the peer.
describe() {
  local layers=
  peer=bench/torch_gpt.py
  case $model in
    14m) config=bench/gpt2_14m.toml name=gpt2-14m seq=256 batch=8 ;;
    124m) config=bench/gpt2_124m.toml name=gpt2-124m seq=1024 batch=1 ;;
    mla | gated_delta_net | kimi_delta_attention | mamba) config=bench/${model}_14m.toml name=$model seq=512 batch=4 peer=bench/torch_architectures.py ;;
    gpt2-124m) config=configs/gpt2_124m.toml name=$model seq=1024 batch=32 ;;
    gpt2-1558m) config=configs/gpt2_1558m.toml name=$model seq=1024 batch=8 ;;
    llama-1b) config=configs/llama_1b.toml name=$model seq=2048 batch=8 ;;
    llama-3b) config=configs/llama_3b.toml name=$model seq=4096 batch=2 ;;
    llama-8b) config=configs/llama_8b.toml name=$model seq=4096 batch=1 layers=16 ;;
  esac
  ours=("$config" "--model.seq_length=$seq" "--training.micro_batch_size=$batch" "--training.global_batch_size=$batch"
    --training.recompute_granularity=none "--device.device=$device" "${tuning[@]}" ${layers:+"--model.num_layers=$layers"})
  [ "$device" != cpu ] || ours+=("--device.num_threads=$threads")
  theirs=("$peer" --model "$name" --threads "$threads" --seq "$seq" --batch "$batch" --device "$device" ${layers:+--layers "$layers"})
}

peer_errors=$(mktemp)
trap 'rm -f "$peer_errors"' EXIT
# shellcheck disable=SC2119
environment_json >>"$output"
printf '%-15s %-5s %14s %14s %8s %6s %12s %8s %22s\n' model dtype tokens/s PyTorch ratio MFU 'of GEMM-only' 'of cold' 'peak GiB (PyTorch)'
for model in "${models[@]}"; do
  describe
  for dtype in "${dtypes[@]}"; do
    speeds=() peer_speeds=() ratios=() mfus=() shares=() cold_shares=() peaks=() peer_peaks=()
    for ((round = 0; round < rounds; ++round)); do
      a=$("$program" bench step "${ours[@]}" --training.precision="$dtype" --repeats=5 --warmup=2 --json)
      b=$("$python" "${theirs[@]}" --dtype "$dtype" --compile --steps 5 --warmup 2 2>"$peer_errors") ||
        fail "PyTorch failed on $model $dtype: $(tail -n 3 "$peer_errors")"
      printf '{"model": "%s", "dtype": "%s", "megatron_cpp": %s, "pytorch": %s}\n' "$model" "$dtype" "$a" "$b" >>"$output"
      # Our JSON has no space after colons, PyTorch's has.
      speeds+=("$(field tokens_per_s <<<"$a")") peer_speeds+=("$(field tokens_per_s <<<"$b")")
      ratios+=("$(awk "BEGIN { print ${speeds[-1]} / ${peer_speeds[-1]} }")")
      mfus+=("$(field mfu <<<"$a")") shares+=("$(field share_of_gemm_only <<<"$a")")
      cold_shares+=("$(field share_of_cold_gemm_only <<<"$a")")
      peaks+=("$(field peak_gib <<<"$a")") peer_peaks+=("$(field peak_gib <<<"$b")")
    done
    printf '%-15s %-5s %14.1f %14.1f %8.2f %5.0f%% %11.0f%% %7.0f%% %12.2f (%.2f)\n' "$model" "$dtype" \
      "$(printf '%s\n' "${speeds[@]}" | median)" "$(printf '%s\n' "${peer_speeds[@]}" | median)" \
      "$(printf '%s\n' "${ratios[@]}" | median)" "$(awk "BEGIN { print 100 * $(printf '%s\n' "${mfus[@]}" | median) }")" \
      "$(awk "BEGIN { print 100 * $(printf '%s\n' "${shares[@]}" | median) }")" \
      "$(awk "BEGIN { print 100 * $(printf '%s\n' "${cold_shares[@]}" | median) }")" \
      "$(printf '%s\n' "${peaks[@]}" | median)" "$(printf '%s\n' "${peer_peaks[@]}" | median)"
  done
done
