#!/usr/bin/env bash
# Builds everything and runs every test, or those of one label, which tests/CMakeLists.txt explains:
#   scripts/test.sh [release|cuda|debug|asan|tsan] [unit|sweeps|planning|layouts|end_to_end|multi_node|cuda|style]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
label=${2:+^$2\$}
scripts/install_dependencies.sh
scripts/build.sh "$preset"
# One more at a time than there are cores: some wait for a time to pass, or for ranks.
exec ctest --test-dir "build/$preset" ${label:+--label-regex "$label"} --output-on-failure --parallel "$(($(nproc) + 1))"
