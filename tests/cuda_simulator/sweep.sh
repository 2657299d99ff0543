#!/usr/bin/env bash
# Runs the tests of streams, communicators and layouts on simulated GPUs under all policies and many seeds, and prints
# the variables that replay each failure: tests/cuda_simulator/sweep.sh [seeds, by default 100 [first seed, by default 0]]
# Each seed runs one of the random compositions of tests/cuda_simulator/tests.cmake. Needs the build of scripts/test.sh
# cuda-sim. Exit code 1 if any run fails.
set -euo pipefail
cd "$(dirname "$0")/../.."
seeds=${1:-100}
first=${2:-0}
mapfile -t compositions < <(sed -n '/^mcpp_seeds(compositions/,/)/p' tests/cuda_simulator/tests.cmake | grep -oE '\b[0-9]+\b')
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failures=0
for ((seed = first; seed < first + seeds; ++seed)); do
  composition=${compositions[seed % ${#compositions[@]}]}
  for policy in late eager reverse random pct; do
    for run in 'comm_tests *nccl_cuda*' 'tensor_tests *AsyncCopy*cuda*:*TransferTest*cuda*' \
      'megatron_cpp_tests *NcclLayouts*cuda*' "megatron_cpp_tests *RandomLayoutsTest*/seed_$composition"; do
      settings=("MCPP_SIMULATOR_POLICY=$policy" "MCPP_SIMULATOR_SEED=$seed" MCPP_SIMULATOR_RANK_ORDER=1
        "MCPP_SIMULATOR_LATE_LOADING=$((seed % 2))" MCPP_TEST_DEVICE=cuda MCPP_TEST_MAX_STEPS=2 RANDOM_LAYOUTS=160)
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
