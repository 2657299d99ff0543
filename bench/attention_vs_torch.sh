#!/usr/bin/env bash
# Compares attention on the CPU with scaled_dot_product_attention of PyTorch, with the same heads, length, precision and
# threads: causal, within documents of 512 tokens, and with a window of 512. Runs alternate.
#
#   bench/attention_vs_torch.sh [--python=PATH] [--program=PATH] [--rounds=N] [--length=8192] [--threads=2] [--dtypes="fp32 bf16"]
#
# PATH of --python is a Python with torch and numpy (python3 -m venv ~/peer && ~/peer/bin/pip install torch numpy).
# Prints JSON lines on standard output and medians of the ratios over the rounds on standard error.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=bench/lib/environment.sh
source bench/lib/environment.sh

python=python3
program=
rounds=3
length=8192
threads=2
dtypes="fp32 bf16"
for argument in "$@"; do
  case $argument in
    --python=*) python=${argument#*=} ;;
    --program=*) program=${argument#*=} ;;
    --rounds=*) rounds=${argument#*=} ;;
    --length=*) length=${argument#*=} ;;
    --threads=*) threads=${argument#*=} ;;
    --dtypes=*) dtypes=${argument#*=} ;;
    *) echo "unknown argument $argument; see the header of $0" >&2 && exit 2 ;;
  esac
done
"$python" -c 'import torch' 2>/dev/null || { echo "$python has no torch; set --python=PATH" >&2 && exit 2; }
if [ -z "$program" ]; then
  scripts/build.sh release megatron_cpp >/dev/null
  program=build/release/megatron_cpp
fi
results=$(mktemp)
trap 'rm -f "$results"' EXIT

# compare <name> <precision> <option of the program ...> -- <option of torch_attention.py ...>
compare() {
  local what=$1 dtype=$2 ours=() theirs=()
  shift 2
  while [ "$1" != -- ]; do ours+=("$1") && shift; done
  shift
  ours=(--training.precision="$dtype" --model.seq_length="$length" --model.num_query_groups=8 --device.num_threads="$threads"
    --repeats=3 "${ours[@]}")
  theirs=(--dtype="$dtype" --seq="$length" --threads="$threads" "$@")
  echo "{\"what\": \"$what\", \"dtype\": \"$dtype\", \"megatron_cpp\": $(bench_json attention bench/gpt2_long.toml -- "${ours[@]}"), \"torch\": $(
    "$python" bench/torch_attention.py "${theirs[@]}"
  )}" | tee -a "$results"
}

# shellcheck disable=SC2119
environment_json
for ((round = 0; round < rounds; ++round)); do
  for dtype in $dtypes; do
    compare causal "$dtype" --
    compare documents "$dtype" --document_length=512 -- --document=512
    compare window "$dtype" '--model.window_size=[511, 0]' -- --window=512
  done
done

"$python" - "$results" >&2 <<'END'
import collections, json, statistics, sys
ratios = collections.defaultdict(lambda: ([], []))
for line in open(sys.argv[1]):
    x = json.loads(line)
    ours = x["megatron_cpp"]["rows"][0]
    for part, name in enumerate(("forward_s", "backward_s")):
        ratios[x["what"], x["dtype"]][part].append(x["torch"][name] / ours[name])
for (what, dtype), (forward, backward) in ratios.items():
    print(f"{what:10} {dtype}  forward {statistics.median(forward):.2f}  backward {statistics.median(backward):.2f} times as fast")
END
