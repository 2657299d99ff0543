#!/usr/bin/env bash
# The rooms are a ladder: an include goes down or sideways inside its own room, never up, never between siblings.
# Also: headers carry #pragma once, and no file outgrows 600 lines.
set -euo pipefail
cd "$(dirname "$0")/.."

declare -A level=([base]=1 [tensor]=2 [comm]=3 [parallel]=4 [model]=5 [optimizer]=5 [data]=5 [checkpoint]=5 [megatron_cpp]=6)
rooms=(base tensor comm parallel model optimizer data checkpoint megatron_cpp)
errors=0
complain() {
  echo "$1"
  errors=$((errors + 1))
}

for room in "${rooms[@]}"; do
  while IFS=: read -r file line text; do
    included=${text#*\"}
    included=${included%%\"*}
    other=${included%%/*}
    [ "$other" != hwy ] || continue  # a library whose headers take their place among ours, compiled once per target
    [ -f "$included" ] || complain "$file:$line: \"$included\" is not a path from the root"
    [ -n "${level[$other]:-}" ] || continue
    [ "$other" = "$room" ] && continue
    [ "${level[$other]}" -lt "${level[$room]}" ] || complain "$file:$line: $room must not include $included"
  done < <(grep -rnE '^#include "' "$room" --include='*.h' --include='*.cpp' --include='*.cu' --include='*.cuh' || true)
  # Strategies of parallelism are siblings too.
  if [ "$room" = parallel ]; then
    while IFS=: read -r file line text; do
      from=$(echo "$file" | cut -d/ -f2)
      to=$(echo "${text#*parallel/}" | cut -d/ -f1)
      [ "$from" = "$to" ] || complain "$file:$line: parallel/$from must not include parallel/$to"
    done < <(grep -rnE '^#include "parallel/(tp|pp|dp|cp|ep)/' parallel/tp parallel/pp parallel/dp || true)
  fi
done

while read -r header; do
  grep -q '^#pragma once' "$header" || [[ $header == *-inl.h ]] || complain "$header: no #pragma once"
done < <(find "${rooms[@]}" -name '*.h')
while read -r lines file; do
  if [ "$file" != total ] && [ "$lines" -gt 600 ]; then complain "$file: $lines lines, at most 600"; fi
done < <(find "${rooms[@]}" tests \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' \) -exec wc -l {} +)

[ "$errors" -eq 0 ] || exit 1
