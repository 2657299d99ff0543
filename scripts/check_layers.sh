#!/usr/bin/env bash
# Checks rules of the sources that compilers do not check. Prints violations and exits with 1 if there are any.
#
#   scripts/check_layers.sh
#
# - Libraries, and the folders inside a library, form layers: sources include only their own folder and lower layers.
# - Headers contain #pragma once.
# - Functions have at most 60 lines and files at most 600.
# - Only base/system_error converts errno to text, so that it is read before a different call changes it.
set -euo pipefail
cd "$(dirname "$0")/.."

# From the lowest layer to the highest. Folders on one line do not include each other. parallel/layout is a header and
# its source on a layer of their own.
read -r -d '' layers <<'END' || true
base
base/program base/io
base/object_store
tensor
tensor/host
tensor/ops
tensor/ops/fused tensor/ops/low_precision tensor/ops/scan
tensor/cpu/simd
tensor/cpu/gemm tensor/cpu/attention tensor/cpu/scan
tensor/cpu tensor/cuda
tensor/cuda/attention tensor/cuda/experts tensor/cuda/gemm tensor/cuda/host tensor/cuda/optimizer tensor/cuda/compression tensor/cuda/scan
nn/offload comm/watchdog
nn
comm
comm/mpi/transport comm/cuda
comm/mpi
parallel/dp/buckets parallel/pp
parallel/layout
parallel/tp parallel/dp parallel/cp parallel/ep
parallel
optimizer/states
model/config optimizer data checkpoint data/tokenizer/bpe data/dataset/index data/jinja
model/layers data/tokenizer checkpoint/format
model/layers/moe data/dataset checkpoint/directory
model data/preprocess checkpoint/load checkpoint/save
data/preprocess/training data/preprocess/distributed
plan/hardware
plan/cost
plan/step
plan
plan/scaling
plan/report
megatron_cpp/config/sections
megatron_cpp/config
megatron_cpp/step
megatron_cpp/setup
megatron_cpp/setup/datasets megatron_cpp/monitor
megatron_cpp/resume
megatron_cpp/inference megatron_cpp/huggingface megatron_cpp/report megatron_cpp/prepare
megatron_cpp/inference/evaluation megatron_cpp/exchange
megatron_cpp/train
megatron_cpp/bench
megatron_cpp/commands/plan
megatron_cpp/commands
megatron_cpp
END
# Libraries that, with their folders on any layer, do not include each other.
sibling_libraries=" model optimizer data checkpoint "

declare -A level=()
libraries=()
row=0
while read -r -a siblings; do
  row=$((row + 1))
  for folder in "${siblings[@]}"; do
    level[$folder]=$row
    library=${folder%%/*}
    [[ " ${libraries[*]} " == *" $library "* ]] || libraries+=("$library")
  done
done <<<"$layers"

errors=0
report() {
  echo "$1"
  errors=$((errors + 1))
}

# may_include <folder> <included folder>
may_include() {
  [ "$1" != "$2" ] || return 0
  local from=${1%%/*} to=${2%%/*}
  [[ $from = "$to" || $sibling_libraries != *" $from "* || $sibling_libraries != *" $to "* ]] || return 1
  [ "${level[$2]}" -lt "${level[$1]}" ]
}

sources=(-name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')
while IFS=: read -r file line text; do
  included=${text#*\"}
  included=${included%%\"*}
  [ "${included%%/*}" != hwy ] || continue # Highway's headers are included like ours
  [ -f "$included" ] || report "$file:$line: \"$included\" is not a path from the root of the sources"
  from=${file%.*} to=${included%.*}
  [ -n "${level[$from]:-}" ] || from=${file%/*}
  [ -n "${level[$to]:-}" ] || to=${included%/*}
  [ -n "${level[$from]:-}" ] || continue # reported below
  [ -n "${level[$to]:-}" ] || continue
  may_include "$from" "$to" || report "$file:$line: library folder $from must not include $included, which is not in a lower layer"
done < <(find "${libraries[@]}" \( "${sources[@]}" \) -exec grep -nHE '^#include "' {} +)

while read -r folder; do
  [ -n "${level[$folder]:-}" ] || report "$folder: is missing from the layers in $0"
done < <(find "${libraries[@]}" \( "${sources[@]}" \) -printf '%h\n' | sort -u)

while read -r header; do
  grep -q '^#pragma once' "$header" || [[ $header == *-inl.h ]] || report "$header: #pragma once is missing"
done < <(find "${libraries[@]}" -name '*.h')
while read -r lines file; do
  if [ "$file" != total ] && [ "$lines" -gt 600 ]; then report "$file: has $lines lines; the maximum is 600"; fi
done < <(find "${libraries[@]}" tests \( "${sources[@]}" \) -exec wc -l {} +)

# In sources formatted by clang-format, a block ends with the first closing brace that has the indentation of the line
# that begins it. Blocks inside a function are shorter than it, so only types, namespaces and tables have to be
# excluded.
# shellcheck disable=SC2016 # variables of awk
long_functions='
  FNR == 1 { in_raw_string = 0; split("", line); split("", text) }
  in_raw_string { in_raw_string = !/\)[A-Za-z]*"/; next }
  /^#/ || /^ *(\/\/.*)?$/ { next }
  {
    match($0, /^ */)
    margin = RLENGTH
    if (/^ *\}[;,)]*$/ && margin in line && FNR - line[margin] >= max &&
        text[margin] !~ /^ *(template .*)?(class|struct|union|enum|namespace|extern) / && text[margin] !~ /(= |[^ ])\{$/)
      print FILENAME ":" line[margin] ": function with " FNR - line[margin] + 1 " lines; the maximum is " max
    line[margin] = FNR
    text[margin] = $0
    in_raw_string = /R"[A-Za-z]*\([^"]*$/ || (/R"[A-Za-z]*\(/ && !/R"[A-Za-z]*\(.*\)[A-Za-z]*"/)
  }'
while read -r finding; do
  report "$finding"
done < <(find "${libraries[@]}" tests \( "${sources[@]}" \) -exec awk -v max=60 "$long_functions" {} +)

while IFS=: read -r file line _; do
  report "$file:$line: strerror() may be called after errno has changed; use MCPP_CHECK_SYSTEM or system_reason()"
done < <(grep -rnE 'strerror(_r|_l)? ?\(|perror ?\(|std::(generic|system)_category' "${libraries[@]}" --include='*.h' --include='*.cpp' --include='*.cu' |
  grep -v '^base/system_error\.')

[ "$errors" -eq 0 ] || exit 1
