#!/usr/bin/env bash
# Measures communication compression on a slow network: four ranks on two network namespaces on this host train GPT-2
# 14M in fp32 with ZeRO 1 and 3, without compression, with gradients in bf16, with weights and gradients in int8, and
# with a secondary shard of the weights on each host (gradients are then reduced on each host first). Runs alternate.
# Sent bytes that differ from the formulas of docs/communication_compression.md are an error. Needs root.
#
#   bench/traffic.sh [--rounds=N] [--megabits=N] [option of megatron_cpp bench step ...]
#
#   --megabits=N   bandwidth of the link in Mb/s (default 1000)
#
# Prints JSON lines on standard output, and medians of tokens/s with the speedup on standard error.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=bench/lib/hosts.sh
source "$root/bench/lib/hosts.sh"
run_in_namespaces 3000 "ssh dropbear tc" "$0" "$@"

rounds=3
megabits=1000
# shellcheck source=bench/lib/arguments.sh
source "$root/bench/lib/arguments.sh"
read_options rounds megabits -- "$@"
cd "$scratch"
results=$scratch/results
printf 'a slots=2\nb slots=2\n' >hostfile
make_network a b
for host in a b; do
  start_host "$host"
  limit_link "$host" "$megabits"
done

# run <name> <ZeRO stage> <bytes per 64 weights> <bytes per 64 gradients> <ranks of a secondary shard> <option ...>
run() {
  local name=$1 stage=$2 line
  line=$(on_host a mpirun -n 4 --bind-to none --hostfile hostfile --allow-run-as-root "$MEGATRON_CPP" bench step \
    "$root/bench/gpt2_14m.toml" --json --device.num_threads=1 --training.micro_batch_size=1 --training.global_batch_size=4 \
    --parallel.zero_stage="$stage" "${@:6}" "${options[@]}" | grep '^{')
  echo "{\"traffic\": \"$name\", \"zero_stage\": $stage, \"result\": $line}" | tee -a "$results"
  check_bytes "$stage" "$3" "$4" "$5" "$line" || { echo "$name: sent bytes differ from the formula" >&2 && exit 1; }
}

# check_bytes <stage> <weight> <gradient> <k> <JSON>: for P elements, d = 4 ranks and secondary shards of k ranks. Tied
# embeddings, the first unit, are gathered once more at stage 3.
check_bytes() {
  echo "$5" | tr ',{}' '\n' | awk -F'": ?' -v stage="$1" -v weight="$2" -v gradient="$3" -v k="$4" '
    function close_to(what, bytes, formula, more) {
      if (bytes >= formula && bytes <= formula + more) return
      printf "%s: %d bytes, expected %d to %d\n", what, bytes, formula, formula + more > "/dev/stderr"
      bad = 1
    }
    { name = $1; gsub(/"/, "", name); value[name] = $2 }
    END {
      p = value["elements"]; d = 4
      gathered = weight / 64 * p
      one = stage == 3 ? weight / 64 * 8192 * 384 * 1.1 : 0
      if (stage == 1) close_to("weights", value["dp_shard all_gather"], gathered * (d - 1) / d, 0)
      else if (k == 1) close_to("weights", value["dp_shard all_gather"], 2 * gathered * (d - 1) / d, one)
      else {
        close_to("weights", value["dp_shard all_gather"], gathered * (d - 1) / d, 0)
        close_to("weights of the host", value["dp_node all_gather"], gathered * (k - 1) / k, one)
      }
      sum = gradient / 64 * p
      if (gradient == 256) close_to("gradients", value["dp_shard reduce_scatter"], sum * (d - 1) / d, 0)
      else if (k == 1) close_to("gradients", value["dp_shard all_to_all"], sum * (d - 1) / d, 0)
      else {
        close_to("gradients in the host", value["dp_node all_to_all"], sum * (k - 1) / k, 0)
        close_to("gradients between hosts", value["dp_across all_to_all"], sum / k * (d / k - 1) / (d / k), 0)
      }
      exit bad
    }'
}

environment_json "\"megabits\": $megabits"
weights=--parallel.zero_quantized_weights=true
gradients=--parallel.zero_quantized_gradients=true
bf16=--parallel.grad_reduce_dtype=bf16
copy=--parallel.zero_hpz_partition_size=2
for ((round = 0; round < rounds; ++round)); do
  run plain 1 256 256 1
  run bf16 1 256 128 1 $bf16
  run bf16_by_hosts 1 256 128 2 $bf16 $copy
  run bytes 1 68 68 1 $weights $gradients
  run all 1 68 68 2 $weights $gradients $copy
  run plain 3 256 256 1
  run copy 3 256 256 2 $copy
  run bf16 3 256 128 1 $bf16
  run bf16_by_hosts 3 256 128 2 $bf16 $copy
  run bytes 3 68 68 1 $weights $gradients
  run all 3 68 68 2 $weights $gradients $copy
done

grep -o '"traffic": "[^"]*", "zero_stage": [0-9]\|"tokens_per_s":[^,]*' "$results" | paste - - | tr -d '"' |
  awk -F'[:,\t]' '{ print $4 + 0, $2, $6 }' | sort -k1,1 -k2,2 -k3,3g | awk "$median_of"'
    function flush() { if (n) middle[stage, name] = median_of(speed, n) }
    $1 != stage || $2 != name { flush(); stage = $1; name = $2; n = 0; order[++rows] = stage SUBSEP name }
    { speed[++n] = $3 }
    END {
      flush()
      for (i = 1; i <= rows; ++i) {
        split(order[i], row, SUBSEP)
        printf "ZeRO %s %-13s %8.1f tokens/s, speedup %.2f\n", row[1], row[2], middle[order[i]],
               middle[order[i]] / middle[row[1], "plain"]
      }
    }' >&2
