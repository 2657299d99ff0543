#!/usr/bin/env bash
# Builds a preset, or only some of its targets.
#
#   scripts/build.sh [release|cuda|cuda-sim|debug|asan|tsan|fuzz] [target ...]    (default: release, all targets)
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
