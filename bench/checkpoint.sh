#!/usr/bin/env bash
# Measures saving and loading GPT-2 124M with the state of AdamW (fp32, 1.5 GB) on one rank and on two: seconds of a
# save, of the time that training waits for an asynchronous save while it continues with real steps (256 tokens per
# rank), of a load, and of a verification. They alternate with plain writes and reads of as many bytes and, if torch is
# installed, with torch.distributed.checkpoint (bench/torch_checkpoint.py), whose stall is the blocking call. The page
# cache is empty before each.
#
#   bench/checkpoint.sh [--python=PATH] [--rounds=N] [--folder=DIR] [option of megatron_cpp bench checkpoint ...]
#
#   --folder=DIR   an empty folder on the disk to measure (default: a temporary folder)
#   --python=PATH  a Python with torch and numpy (python3 -m venv ~/peer && ~/peer/bin/pip install torch numpy)
#
# Prints JSON lines on standard output, and medians over the rounds and their ratios on standard error.
set -euo pipefail
cd "$(dirname "$0")/.."

python=python3
rounds=3
folder=
# shellcheck source=bench/lib/arguments.sh
source bench/lib/arguments.sh
read_options python rounds folder -- "$@"
program=${MEGATRON_CPP:-}
build_program
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh
results=$(mktemp)
trap 'rm -f "$results"; [ -z "${temporary:-}" ] || rm -rf "$temporary"' EXIT
[ -n "$folder" ] || folder=$(mktemp -d) temporary=$folder
has_torch=no
! "$python" -c 'import torch' 2>/dev/null || has_torch=yes

environment_json
for ((round = 0; round < rounds; ++round)); do
  for ranks in 1 2; do
    launch_ranks $ranks --bind-to none
    line=$("${launch[@]}" "$program" bench checkpoint bench/gpt2_124m.toml "$folder" --rounds=1 --json \
      --training.global_batch_size=$ranks --model.seq_length=256 --model.max_position_embeddings=1024 \
      --parallel.zero_stage=$((ranks - 1)) --device.num_threads=1 "${options[@]}")
    echo "{\"side\": \"megatron_cpp\", \"result\": $line}" | tee -a "$results"
    [ $has_torch = yes ] || continue
    # torch sometimes hangs; the round then continues without it.
    line=$(OMP_NUM_THREADS=1 timeout 180 "$python" -m torch.distributed.run --nproc_per_node $ranks bench/torch_checkpoint.py \
      "$folder" --rounds 1 2>/dev/null) || { rm -rf "${folder:?}"/* && continue; }
    echo "{\"side\": \"torch\", \"result\": $line}" | tee -a "$results"
  done
done

# Medians by side, ranks and metric, then the ratios.
tr -d ' "{}' <"$results" | sed 's/result://' | awk -F, '
  { side = ranks = ""
    for (i = 1; i <= NF; ++i) { split($i, f, ":"); if (f[1] == "side") side = f[2]; if (f[1] == "ranks") ranks = f[2] }
    for (i = 1; i <= NF; ++i) { split($i, f, ":"); if (f[1] ~ /_s$/) print side, ranks, f[1], f[2] } }' |
  sort -k1,3 -k4,4g | awk "$median_of"'
    function flush() { if (n) median[key] = median_of(v, n) }
    { if ($1 " " $2 " " $3 != key) { flush(); key = $1 " " $2 " " $3; n = 0 } v[++n] = $4 }
    function ratio(text, a, b) { if (a > 0 && b > 0) printf "  %-58s %.2f\n", text, a / b }
    END {
      flush()
      for (r = 1; r <= 2; ++r) {
        o = "megatron_cpp " r " "; t = "torch " r " "
        printf "%d rank(s), medians in seconds\n", r
        count = split("plain_write_s save_s step_s step_beside_save_s async_first_stall_s async_stall_s async_total_s plain_read_s direct_read_s load_s verify_s", names, " ")
        for (i = 1; i <= count; ++i) printf "  %-22s %8.3f   torch %s\n", names[i], median[o names[i]], median[t names[i]]
        ratio("speed of a save relative to a plain write", median[o "plain_write_s"], median[o "save_s"])
        ratio("speed of a load relative to a plain read", median[o "plain_read_s"], median[o "load_s"])
        ratio("speed of a load relative to a direct read", median[o "direct_read_s"], median[o "load_s"])
        ratio("stall of the first asynchronous save / save", median[o "async_first_stall_s"], median[o "save_s"])
        ratio("stall of a later asynchronous save / save", median[o "async_stall_s"], median[o "save_s"])
        ratio("step during a save / step", median[o "step_beside_save_s"], median[o "step_s"])
        ratio("speedup over torch, save", median[t "save_s"], median[o "save_s"])
        ratio("speedup over torch, load", median[t "load_s"], median[o "load_s"])
        ratio("speedup over torch, stall", median[t "async_stall_s"], median[o "async_stall_s"])
      } }' >&2
