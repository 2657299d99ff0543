#!/usr/bin/env bash
# The rooms are a ladder, and so are the folders inside a room: an include goes down or sideways inside its own folder,
# never up, never between siblings.
# Also: headers carry #pragma once; no function outgrows 60 lines and no file 600; errno becomes words in one place, which
# reads it in time.
set -euo pipefail
cd "$(dirname "$0")/.."

# From the bottom to the top; siblings stand on one line.
read -r -d '' ladder <<'END' || true
base
base/text
base/json base/program base/io
tensor
tensor/host
tensor/ops
tensor/ops/fused tensor/ops/low_precision
tensor/cpu/simd
tensor/cpu/gemm tensor/cpu/attention
tensor/cpu tensor/cuda
tensor/cuda/attention tensor/cuda/experts tensor/cuda/gemm tensor/cuda/host tensor/cuda/optimizer tensor/cuda/compression
nn/offload comm/watchdog
nn
comm
comm/mpi/transport comm/cuda
comm/mpi
parallel/dp/buckets
parallel/tp parallel/dp parallel/pp parallel/cp parallel/ep
parallel
optimizer/states
model/config optimizer data checkpoint data/tokenizer/bpe data/dataset/index
model/layers data/tokenizer data/dataset checkpoint/format
model/layers/moe data/preprocess data/mock checkpoint/directory
model data/preprocess/training data/preprocess/distributed checkpoint/load checkpoint/save
plan/hardware
plan/cost
plan/step
plan
plan/scaling
plan/report
megatron_cpp/config/sections
megatron_cpp/config megatron_cpp/logging
megatron_cpp/step
megatron_cpp/setup
megatron_cpp/setup/datasets
megatron_cpp/resume
megatron_cpp/inference megatron_cpp/huggingface megatron_cpp/bench megatron_cpp/report megatron_cpp/prepare
megatron_cpp/inference/evaluation megatron_cpp/monitor
megatron_cpp/monitor/metrics
megatron_cpp/train
megatron_cpp/commands/bench megatron_cpp/commands/plan
megatron_cpp/commands
megatron_cpp
END
# The folders of a room below may be used by a whole room above; among the siblings model, optimizer, data and
# checkpoint and their folders nobody uses another's.
sibling_rooms=" model optimizer data checkpoint "

declare -A level=()
rooms=()
row=0
while read -r -a siblings; do
  row=$((row + 1))
  for folder in "${siblings[@]}"; do
    level[$folder]=$row
    room=${folder%%/*}
    [[ " ${rooms[*]} " == *" $room "* ]] || rooms+=("$room")
  done
done <<<"$ladder"

errors=0
complain() {
  echo "$1"
  errors=$((errors + 1))
}

# Whether a source in folder $1 may include one in folder $2.
may_include() {
  [ "$1" != "$2" ] || return 0
  local from=${1%%/*} to=${2%%/*}
  [[ $from = "$to" || $sibling_rooms != *" $from "* || $sibling_rooms != *" $to "* ]] || return 1
  [ "${level[$2]}" -lt "${level[$1]}" ]
}

sources=(-name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')
while IFS=: read -r file line text; do
  included=${text#*\"}
  included=${included%%\"*}
  [ "${included%%/*}" != hwy ] || continue # a library whose headers take their place among ours, compiled once per target
  [ -f "$included" ] || complain "$file:$line: \"$included\" is not a path from the root"
  from=${file%/*} to=${included%/*}
  [ -n "${level[$from]:-}" ] || continue # named below
  [ -n "${level[$to]:-}" ] || continue
  may_include "$from" "$to" || complain "$file:$line: $from must not include $included"
done < <(find "${rooms[@]}" \( "${sources[@]}" \) -exec grep -nHE '^#include "' {} +)

while read -r folder; do
  [ -n "${level[$folder]:-}" ] || complain "$folder: has no place in the order of $0"
done < <(find "${rooms[@]}" \( "${sources[@]}" \) -printf '%h\n' | sort -u)

while read -r header; do
  grep -q '^#pragma once' "$header" || [[ $header == *-inl.h ]] || complain "$header: no #pragma once"
done < <(find "${rooms[@]}" -name '*.h')
while read -r lines file; do
  if [ "$file" != total ] && [ "$lines" -gt 600 ]; then complain "$file: $lines lines, at most 600"; fi
done < <(find "${rooms[@]}" tests \( "${sources[@]}" \) -exec wc -l {} +)

# As clang-format lays sources out, what a line begins ends with a brace below it, at the same distance from the margin.
# Whatever is in a function is shorter than it, so that only types, namespaces and tables have to be told from code.
# shellcheck disable=SC2016 # awk's own variables
long_functions='
  FNR == 1 { in_raw_string = 0; split("", line); split("", text) }
  in_raw_string { in_raw_string = !/\)[A-Za-z]*"/; next }
  /^#/ || /^ *(\/\/.*)?$/ { next }
  {
    match($0, /^ */)
    margin = RLENGTH
    if (/^ *\}[;,)]*$/ && margin in line && FNR - line[margin] >= most &&
        text[margin] !~ /^ *(template .*)?(class|struct|union|enum|namespace|extern) / && text[margin] !~ /(= |[^ ])\{$/)
      print FILENAME ":" line[margin] ": a function of " FNR - line[margin] + 1 " lines, at most " most
    line[margin] = FNR
    text[margin] = $0
    in_raw_string = /R"[A-Za-z]*\([^"]*$/ || (/R"[A-Za-z]*\(/ && !/R"[A-Za-z]*\(.*\)[A-Za-z]*"/)
  }'
while read -r finding; do
  complain "$finding"
done < <(find "${rooms[@]}" tests \( "${sources[@]}" \) -exec awk -v most=60 "$long_functions" {} +)

while IFS=: read -r file line _; do
  complain "$file:$line: strerror(): by the time it is called errno may be another; use MCPP_CHECK_SYSTEM or system_reason()"
done < <(grep -rnE 'strerror(_r|_l)? ?\(|perror ?\(|std::(generic|system)_category' "${rooms[@]}" --include='*.h' --include='*.cpp' --include='*.cu' |
  grep -v '^base/system_error\.')

[ "$errors" -eq 0 ] || exit 1
