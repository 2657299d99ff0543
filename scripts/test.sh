#!/usr/bin/env bash
# Builds everything and runs every test: scripts/test.sh [release|debug|asan]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
scripts/install_dependencies.sh
scripts/build.sh "$preset"
# Sanitizers report through exit codes; Open MPI's own leaks are not ours to judge.
export ASAN_OPTIONS=detect_leaks=0:${ASAN_OPTIONS:-}
exec ctest --test-dir "build/$preset" --output-on-failure --parallel "$(nproc)"
