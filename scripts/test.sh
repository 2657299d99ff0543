#!/usr/bin/env bash
# Builds everything and runs every test: scripts/test.sh [release|cuda|debug|asan|tsan]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
scripts/install_dependencies.sh
scripts/build.sh "$preset"
exec ctest --test-dir "build/$preset" --output-on-failure --parallel "$(nproc)"
