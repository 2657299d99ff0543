#!/usr/bin/env bash
# Builds and runs all tests, the tests of one label, or one test.
#
#   scripts/test.sh [preset]            builds everything and runs every test
#   scripts/test.sh [preset] LABEL      builds everything and runs the tests of a label
#   scripts/test.sh [preset] NAME       builds the target that a test needs and runs it with its output
#
#   preset   release (default), cuda, cuda-sim, debug, asan or tsan
#   LABEL    unit, sweeps, planning, layouts, end_to_end, multi_node, cuda or style; with the preset cuda-sim also
#            cuda-sim or cuda-sim-fast (docs/testing.md)
#   NAME     a suite (LrScheduleTest), a test of it (LrScheduleTest.MatchesMegatronGoldenValues), a file
#            (lr_schedule_test), or a CTest name (huggingface)
#
# Exit code: 0 all tests passed, 2 there is no such preset, label or test, otherwise that of the build or the tests.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
fail() {
  printf 'scripts/test.sh: %s\n' "$@" >&2
  exit 2
}

presets="release cuda cuda-sim debug asan tsan"
labels="unit sweeps planning layouts end_to_end multi_node cuda cuda-sim cuda-sim-fast style"

# all_tests: prints "file suite test" for every test in tests/.
all_tests() {
  grep -rE '^TEST(_F|_P)?\(' tests --include='*.cpp' |
    sed -nE 's/^([^:]+):TEST(_F|_P)?\(([A-Za-z0-9_]+), *([A-Za-z0-9_]+)\).*/\1 \3 \4/p'
}

# scripted_tests: prints the CTest names of tests that are not GoogleTest cases.
scripted_tests() {
  sed -nE 's/^ *(add_test\(NAME|mcpp_mpi_test\() *([a-z][A-Za-z0-9_]*)( .*|\).*|)$/\2/p
    s/^mcpp_wrong_size_test\(([a-z_]+) .*/comm_mpi_\1_stops_all_ranks/p' tests/CMakeLists.txt
  echo comm_mpi_2 comm_mpi_4 multi_node slurm | tr ' ' '\n' # added in loops
}

# nearest <name>: prints those names of standard input that contain the name or differ least from it.
nearest() {
  awk -v name="$1" '
    function distance(a, b,    i, j, row, above, corner, cost) { # Levenshtein
      for (j = 0; j <= length(b); ++j) row[j] = j
      for (i = 1; i <= length(a); ++i) {
        corner = row[0]
        row[0] = i
        for (j = 1; j <= length(b); ++j) {
          above = row[j]
          cost = corner + (substr(a, i, 1) != substr(b, j, 1))
          if (above + 1 < cost) cost = above + 1
          if (row[j - 1] + 1 < cost) cost = row[j - 1] + 1
          row[j] = cost
          corner = above
        }
      }
      return row[length(b)]
    }
    { print index(tolower($0), tolower(name)) ? 0 : distance(tolower(name), tolower($0)), $0 }' |
    sort -k1,1n -k2,2 -u | head -n 5 | cut -d' ' -f2- | paste -sd ' ' | sed 's/ /, /g'
}

# fail_unknown_name <name>: reports an unknown name with similar ones.
fail_unknown_name() {
  local candidates
  if [[ $1 == *.* ]] && grep -q " ${1%%.*} " <<<"$tests"; then
    candidates=$(awk -v suite="${1%%.*}" '$2 == suite { print $2 "." $3 }' <<<"$tests" | nearest "$1")
  else
    candidates=$({
      awk '{ file = $1; sub(/.*\//, "", file); sub(/\.cpp$/, "", file); print $2; print file }' <<<"$tests"
      scripted_tests
    } | sort -u | nearest "${1%%.*}")
  fi
  fail "$1: no such preset, label or test. Similar tests: $candidates" "labels: $labels" "presets: $presets"
}

# matching_tests <name>: prints the lines of `tests` for a suite, a test, or a file, with or without folder and ending.
# The name of a single case, such as Types/MatmulTest.IsExact/fp32, matches all cases of the test.
matching_tests() {
  local name=${1%.cpp}
  if [[ $name =~ ([A-Za-z0-9_]+\.[A-Za-z0-9_]+)(/|$) ]]; then name=${BASH_REMATCH[1]}; fi
  awk -v name="$name" '{
    path = "/" $1
    sub(/\.cpp$/, "", path)
    is_file = substr(path, length(path) - length(name)) == "/" name
    if (is_file || name == $2 || name == $2 "." $3) print
  }' <<<"$tests"
}

# target_of <file>: prints the program that a source of tests belongs to.
target_of() {
  local folder=${1#tests/}
  echo "${folder%%/*}_tests"
}

# run_scripted <name>: runs a CTest test that is not a GoogleTest case.
run_scripted() {
  local targets=(megatron_cpp)
  case $1 in
    layers | format | comments | commits | launch_script | gpu_check) targets=() ;;
    comm_mpi_*) targets=(comm_mpi_tests) ;;
  esac
  if [ ${#targets[@]} -gt 0 ]; then
    scripts/build.sh "$preset" "${targets[@]}"
  else
    cmake --preset "$preset" >/dev/null
  fi
  exec ctest --test-dir "build/$preset" --tests-regex "^$1\$" --no-tests=error --verbose
}

# run_matching <lines of tests>: builds the programs of these tests and runs them.
run_matching() {
  local target file suite test programs code=0
  declare -A filters=()
  while read -r file suite test; do
    target=$(target_of "$file")
    filters[$target]+="${filters[$target]:+:}$suite.$test:*/$suite.$test/*"
  done <<<"$1"
  if [ -n "${filters[comm_mpi_tests]:-}" ]; then run_scripted 'comm_mpi_[24]'; fi
  programs=("${!filters[@]}")
  if [ -n "${filters[cuda_simulator_tests]:-}" ] && [ "$preset" != cuda-sim ]; then
    fail "$name: needs the preset cuda-sim: scripts/test.sh cuda-sim $name"
  fi
  scripts/build.sh "$preset" "${programs[@]}"
  case $preset in # as in tests/CMakeLists.txt
    asan) export LSAN_OPTIONS=suppressions=$PWD/tests/lsan_suppressions.txt:print_suppressions=0:allocator_may_return_null=1 ;;
    tsan) export OMP_THREAD_LIMIT=1 ;;
  esac
  for target in "${programs[@]}"; do
    OMP_WAIT_POLICY=passive "build/$preset/$target" --gtest_filter="${filters[$target]}" || code=$?
  done
  exit "$code"
}

case ${1:-} in -h | --help) usage && exit 0 ;; esac
preset=release
if [ $# -gt 0 ] && [[ " $presets " == *" $1 "* ]]; then
  preset=$1
  shift
fi
[ $# -le 1 ] || fail "too many arguments: ${*:2}; see --help"
name=${1:-}
if [ -n "$name" ] && [[ " $labels " != *" $name "* ]]; then
  tests=$(all_tests)
  found=$(matching_tests "$name")
  if [ -z "$found" ] && ! grep -qxF -- "$name" <<<"$(scripted_tests)"; then fail_unknown_name "$name"; fi
  scripts/install_dependencies.sh
  if [ -n "$found" ]; then run_matching "$found"; else run_scripted "$name"; fi
fi
targets=()
if [ "$preset" = cuda-sim ]; then # only tests on simulated GPUs; the others run in the other presets
  name=${name:-cuda-sim}
  targets=(cuda_simulator_tests cuda_simulator_clock_tests tensor_tests comm_tests megatron_cpp_tests)
  if [ "$name" = cuda-sim ]; then targets+=(model_tests checkpoint_tests); fi # for scripts/gpu_check.sh
fi
scripts/install_dependencies.sh
scripts/build.sh "$preset" "${targets[@]}"
# Runs one test more than there are cores at a time, because some wait for timeouts or for ranks.
exec ctest --test-dir "build/$preset" ${name:+--label-regex "^$name\$"} --output-on-failure --parallel "$(($(nproc) + 1))"
