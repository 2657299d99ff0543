#!/usr/bin/env bash
# Builds one preset (release when none is named): scripts/build.sh [release|cuda|debug|asan|tsan] [target ...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" >"$log" 2>&1 || {
  cat "$log" >&2
  exit 1
}
targets=()
for target in "$@"; do targets+=(--target "$target"); done
cmake --build --preset "$preset" "${targets[@]}"
