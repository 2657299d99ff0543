#!/usr/bin/env bash
# Injects the defects of mutations.tsv into the CUDA backend one at a time, and prints which of them the tests on
# simulated GPUs detect: tests/cuda_simulator/mutations.sh [name ...]
# Works in a worktree below build/; the working tree stays as it is. Exit code 1 if more than one is not detected.
set -euo pipefail
cd "$(dirname "$0")/../.."
table=$PWD/tests/cuda_simulator/mutations.tsv
tree=$PWD/build/mutations
names=("$@")
rm -rf "$tree"
git worktree prune
git worktree add --detach --quiet "$tree" HEAD
trap 'git worktree remove --force "$tree"' EXIT
cd "$tree"

# mutate <file> <after> <text> <replacement>: replaces the first occurrence of the text after `after`.
mutate() {
  python3 - "$@" <<'PYTHON'
import pathlib, sys
path, after, text, replacement = sys.argv[1:]
source = pathlib.Path(path).read_text()
start = source.find(after)
at = source.find(text, start) if start >= 0 else -1
if at < 0:
    sys.exit(f"mutations.tsv: {path} has no \"{text}\" after \"{after}\"")
pathlib.Path(path).write_text(source[:at] + replacement + source[at + len(text):])
PYTHON
}

# With this seed, GEMMs use a workspace.
export MCPP_SIMULATOR_SEED=1 MCPP_SIMULATOR_RANK_ORDER=1 MCPP_SIMULATOR_PATIENCE=20
scripts/build.sh cuda-sim tensor_tests comm_tests >/dev/null
missed=0
total=0
printf '%-34s %-14s %s\n' defect result report
while IFS=$'\t' read -r name file after text replacement program filter; do
  case $name in '' | '#'*) continue ;; esac
  if [ ${#names[@]} -gt 0 ] && [[ " ${names[*]} " != *" $name "* ]]; then continue; fi
  [ "$replacement" = REMOVE ] && replacement=""
  mutate "$file" "$after" "$text" "$replacement"
  total=$((total + 1))
  log=build/$name.log
  result=detected
  if ! scripts/build.sh cuda-sim "$program" >"$log" 2>&1; then
    result="no build"
  else
    {  # without bash's messages about programs that abort
      if timeout 600 "build/cuda-sim/$program" "--gtest_filter=$filter" >"$log" 2>&1; then result=MISSED; fi
    } 2>/dev/null
    if grep -q 'Running 0 tests' "$log"; then result="NO TESTS"; fi
  fi
  [ "$result" = detected ] || missed=$((missed + 1))
  printf '%-34s %-14s %s\n' "$name" "$result" "$(grep -m1 -o -e 'CUDA simulator: .*' -e 'Failure$' "$log" | cut -c1-110 || true)"
  git checkout --quiet -- "$file"
done <"$table"
echo "$((total - missed)) of $total detected"
[ "$missed" -le 1 ]
