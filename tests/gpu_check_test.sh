#!/usr/bin/env bash
# Tests scripts/gpu_check.sh on machines without a GPU: it reports that there is none, and with stand-ins for the GPU
# and the programs it tells failed and skipped checks from passed ones.
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
grep -q '^no GPU' "$folder/out" || complain "without a GPU it does not report that"

# A GPU on which op tests pass, model tests fail, and there are no communicator tests. Training is reproducible, but
# several ranks do not match one.
nvidia-smi() { [ "$1" = -L ] && echo "GPU 0: stand-in"; }
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
[ "$1 $2" != "bench attention" ] || echo "warning: attention's backward runs in this program's own kernel, several times slower than cuDNN's: stand-in" >&2
[ "$1" != generate ] || echo "O Romeo"
[ "$1" = pretrain ] || exit 0
mkdir -p "$save"
for ((i = 1; i <= steps; ++i)); do echo "{\"type\":\"train\",\"iteration\":$i,\"lm_loss\":$((200 + ${error:-0} - i)).5,"; done >"$save/metrics.jsonl"
END
code=0
scripts/gpu_check.sh --output "$folder/output" "$folder" >/dev/null 2>&1 || code=$?
table=$(cat "$folder/output/table.txt")
[ $code -eq 1 ] || complain "with failures the exit code is $code; $table"
expect() { grep -Eq "^$1 +\| $2 +\| +[0-9]+ \| $3" <<<"$table" || complain "$1: expected '$2': $3. $table"; }
expect "op tests" passed "3 tests"
expect "model tests" FAILED "0 passed; failed: Suite.Bad_cuda"
expect "golden, CPU parity" FAILED "2 tests were skipped"
expect "communicators" skipped "no tests match"
expect "checkpoint tests" passed "2 tests"
expect "async save, offload" passed "losses of 20 steps"
expect "dp 4, HSDP" FAILED "20 steps, losses differ by at most 0.005"
expect "experts, ep 2" FAILED "20 steps, losses differ by at most 0.005"
expect "dp 2, bf16 gradients" passed "20 steps, losses differ by at most 0.005"
expect "nondeterministic" passed "20 steps, losses differ by at most 0"
expect "golden training" FAILED "2 tests were skipped"
expect "generates" passed "2 words, identical to the CPU"
expect "generates, pp 2" passed "2 words, identical to the CPU"
expect "attention, 32k tokens" FAILED "attention used the fallback kernel"
expect "learns in bf16" passed "loss 199.5 to 100.5"
expect "learns in fp16" passed "loss 199.5 to 100.5, 0 steps skipped"
expect "GELU epilogues" passed "20 steps, losses differ by at most 0"
expect "learns in fp8" passed "loss 100.5 after 100 steps, in bf16 100.5"
expect "reproducible" passed "losses of 20 steps"
expect "tp 2 on one GPU" FAILED "20 steps, losses differ by at most 0.005"
expect "memcheck" passed "========= ERROR SUMMARY: 0 errors"
expect "memcheck, subset" passed "========= ERROR SUMMARY: 0 errors"
! grep -q 'did not finish' <<<"$table" || complain "the time limit was not reached. $table"

# Checks that do not fit into the time limit are listed and are not failures.
scripts/gpu_check.sh --output "$folder/output" --seconds 2 "$folder" >/dev/null 2>&1 || complain "it reports a failure although nothing failed"
table=$(cat "$folder/output/table.txt")
expect "op tests" skipped "time limit reached"
grep -Eq '^[0-9]+ checks did not finish within the time limit: GPU; op tests; .*; memcheck; racecheck$' <<<"$table" ||
  complain "it does not list the skipped checks. $table"

# The most important checks fit into the time limit even if each uses its whole limit.
budget=$(sed -n 's/^budget=\([0-9]*\).*/\1/p' scripts/gpu_check.sh)
first=$(sed -n '/^# Most important checks/,/^# Optional checks/s/^check \("[^"]*"\|[a-z]*\) \([0-9]*\) .*/\2/p' scripts/gpu_check.sh |
  awk '{ sum += $1 } END { print sum + 0 }')
if [ "$first" -lt 300 ] || [ "$first" -gt "$budget" ]; then complain "the most important checks may take $first of $budget seconds"; fi
