#!/usr/bin/env bash
# scripts/gpu_check.sh on machines without a GPU: that it says so, and, with programs and a GPU that only pretend, that
# what fails, hangs or has no tests is told from what passes.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
complain() {
  echo "$*"
  exit 1
}

# shellcheck disable=SC2317  # called by the script
nvidia-smi() { return 9; }
export -f nvidia-smi
code=0
scripts/gpu_check.sh "$folder" >"$folder/out" || code=$?
[ $code -eq 77 ] || complain "without a GPU the exit code is $code"
grep -q '^no GPU' "$folder/out" || complain "without a GPU it does not say so"

# A GPU whose op tests pass, whose model tests fail, which has no tests of communicators, and whose training learns with
# the same bits every time, but not on several ranks.
nvidia-smi() { [ "$1" = -L ] && echo "GPU 0: pretended"; }
compute-sanitizer() { echo "========= ERROR SUMMARY: 0 errors"; }
mpirun() { while [ "$1" != "$MCPP_BINARY_DIR/megatron_cpp" ]; do shift; done && "$@" --wrong; }
export -f compute-sanitizer mpirun
program() {
  cat >"$folder/$1"
  chmod +x "$folder/$1"
}
program tensor_tests <<<'echo "[  PASSED  ] 3 tests."'
program checkpoint_tests <<<'echo "[  PASSED  ] 2 tests."'
program comm_tests <<<'echo "[  PASSED  ] 0 tests."'
program megatron_cpp_tests <<<'printf "[  PASSED  ] 3 tests.\n[  SKIPPED ] 2 tests.\n"'
program model_tests <<<'echo "[  FAILED  ] Suite.Bad_cuda (1 ms)"; exit 1'
program megatron_cpp <<'END'
#!/usr/bin/env bash
for word in "$@"; do
  case $word in
    --checkpoint.save=*) save=${word#*=} ;;
    --training.train_iters=*) steps=${word#*=} ;;
    --wrong) error=1 ;;
  esac
done
[ "$1 $2" != "bench attention" ] || echo "warning: attention's backward runs in this program's own kernel, several times slower than cuDNN's: it is pretended" >&2
[ "$1" != generate ] || echo "O Romeo"
[ "$1" = pretrain ] || exit 0
mkdir -p "$save"
for ((i = 1; i <= steps; ++i)); do echo "{\"type\":\"train\",\"iteration\":$i,\"lm_loss\":$((200 + ${error:-0} - i)).5,"; done >"$save/metrics.jsonl"
END
code=0
scripts/gpu_check.sh --output "$folder/output" "$folder" >/dev/null 2>&1 || code=$?
table=$(cat "$folder/output/table.txt")
[ $code -eq 1 ] || complain "with failures the exit code is $code; $table"
expect() { grep -Eq "^$1 +\| $2 +\| +[0-9]+ \| $3" <<<"$table" || complain "$1 is not '$2': $3. $table"; }
expect "op tests" passed "3 tests"
expect "model tests" FAILED "0 passed; failed: Suite.Bad_cuda"
expect "golden, CPU parity" FAILED "2 tests were skipped"
expect "communicators" "left out" "no such tests"
expect "saves" passed "2 tests"
expect "beside computing" passed "losses of 20 steps"
expect "dp 4, HSDP" FAILED "20 steps, losses differ by at most 0.005"
expect "experts, ep 2" FAILED "20 steps, losses differ by at most 0.005"
expect "dp 2, bf16 gradients" passed "20 steps, losses differ by at most 0.005"
expect "any order of sums" passed "20 steps, losses differ by at most 0"
expect "golden training" FAILED "2 tests were skipped"
expect "generates" passed "2 words, the same as on the CPU"
expect "generates, pp 2" passed "2 words, the same as on the CPU"
expect "attention of 32k" FAILED "attention ran in the own kernel"
expect "learns in bf16" passed "loss 199.5 to 100.5"
expect "learns in fp16" passed "loss 199.5 to 100.5, 0 steps skipped"
expect "GELU epilogues" passed "20 steps, losses differ by at most 0"
expect "learns in fp8" passed "loss 100.5 after 100 steps, in bf16 100.5"
expect "same bits twice" passed "losses of 20 steps"
expect "tp 2 on one GPU" FAILED "20 steps, losses differ by at most 0.005"
expect "memcheck" passed "========= ERROR SUMMARY: 0 errors"
expect "memcheck of some" passed "========= ERROR SUMMARY: 0 errors"
! grep -q 'not run to their end' <<<"$table" || complain "there was time for everything. $table"

# Where the time is up it says what was not run, which is no failure.
scripts/gpu_check.sh --output "$folder/output" --seconds 2 "$folder" >/dev/null 2>&1 || complain "nothing failed, but it says so"
table=$(cat "$folder/output/table.txt")
expect "op tests" "left out" "no time left"
grep -Eq '^[0-9]+ checks were not run to their end, as the time was up: facts; op tests; .*; memcheck; racecheck$' <<<"$table" ||
  complain "it does not name what it left out. $table"

# What says most fits the time even if each check takes all that it may.
budget=$(sed -n 's/^budget=\([0-9]*\).*/\1/p' scripts/gpu_check.sh)
first=$(sed -n '/^# What says most/,/^# What may be left out/s/^check \("[^"]*"\|[a-z]*\) \([0-9]*\) .*/\2/p' scripts/gpu_check.sh |
  awk '{ sum += $1 } END { print sum + 0 }')
if [ "$first" -lt 300 ] || [ "$first" -gt "$budget" ]; then complain "what says most may take $first of $budget seconds"; fi
