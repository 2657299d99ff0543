#!/usr/bin/env bash
# Fast checks before a push: format, layers, comments, the release build and the unit tests. With a warm ccache they
# take a few minutes. scripts/test.sh runs all tests, .ci/run everything.
#
#   scripts/check.sh
#
# Prints a summary with the seconds of each check. Exit code: 0 all checks passed or were skipped, 1 a check failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

case ${1:-} in
  "") ;;
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" && exit 0 ;;
  *) echo "scripts/check.sh: $1: unknown argument; see --help" >&2 && exit 2 ;;
esac

summary="" failed=0
# check <name> <command ...>: runs a check; exit code 77 means that it was skipped.
check() {
  local name=$1 start=$SECONDS code=0 result=passed
  shift
  echo "== $name"
  "$@" || code=$?
  case $code in
    0) ;;
    77) result=skipped ;;
    *) result=FAILED failed=1 ;;
  esac
  summary+=$(printf '%-14s %-8s %5d s' "$name" "$result" $((SECONDS - start)))$'\n'
  return "$code"
}

# shellcheck disable=SC2317 # called by check
unit_tests() {
  ctest --test-dir build/release --label-regex '^unit$' --no-tests=error --output-on-failure --progress --parallel "$(nproc)"
}

check format scripts/lint.sh format
check layers scripts/check_layers.sh
check comments scripts/lint.sh comments
check "release build" scripts/build.sh release && check "unit tests" unit_tests
printf '\n== summary\n%s' "$summary"
exit "$failed"
