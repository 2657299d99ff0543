#!/usr/bin/env bash
# Builds one preset (release when none is named): scripts/build.sh [release|debug|asan|tsan] [target ...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
cmake --preset "$preset" >"/tmp/megatron_cpp_configure_$$.log" 2>&1 || {
  cat "/tmp/megatron_cpp_configure_$$.log" >&2
  exit 1
}
rm -f "/tmp/megatron_cpp_configure_$$.log"
targets=()
for target in "$@"; do targets+=(--target "$target"); done
cmake --build --preset "$preset" "${targets[@]}"
