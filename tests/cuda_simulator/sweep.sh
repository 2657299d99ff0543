#!/usr/bin/env bash
# Runs the tests of streams, communicators and layouts on simulated GPUs under all policies and many seeds, and prints
# the variables that replay each failure: tests/cuda_simulator/sweep.sh [seeds, by default 100]
# Needs the build of scripts/test.sh cuda-sim. Exit code 1 if any run fails.
set -euo pipefail
cd "$(dirname "$0")/../.."
seeds=${1:-100}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failures=0
for ((seed = 0; seed < seeds; ++seed)); do
  for policy in late eager reverse random pct; do
    for run in 'comm_tests *nccl_cuda*' 'tensor_tests *AsyncCopy*cuda*:*TransferTest*cuda*' \
      'megatron_cpp_tests *NcclLayouts*cuda*'; do
      settings=("MCPP_SIMULATOR_POLICY=$policy" "MCPP_SIMULATOR_SEED=$seed" MCPP_SIMULATOR_RANK_ORDER=1
        "MCPP_SIMULATOR_LATE_LOADING=$((seed % 2))")
      if ! env "${settings[@]}" "build/cuda-sim/${run% *}" "--gtest_filter=${run#* }" >"$log" 2>&1; then
        failures=$((failures + 1))
        echo "${settings[*]} build/cuda-sim/${run% *} '--gtest_filter=${run#* }'"
        grep -m1 -e 'CUDA simulator: ' -e 'Failure$' "$log" || true
      fi
    done
  done
done
echo "$((seeds * 5)) runs of each program, $failures failures"
[ "$failures" = 0 ]
