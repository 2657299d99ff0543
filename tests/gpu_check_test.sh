#!/usr/bin/env bash
# Tests scripts/gpu_check.sh without a GPU: it reports that there is none and, with fake programs and a fake or simulated
# GPU, it distinguishes checks that fail, hang or have no tests from checks that pass.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
report_failure() {
  echo "$*"
  exit 1
}

# shellcheck disable=SC2317  # called by the script
nvidia-smi() { return 9; }
export -f nvidia-smi
code=0
scripts/gpu_check.sh "$folder" >"$folder/out" || code=$?
[ $code -eq 77 ] || report_failure "without a GPU the exit code is $code"
grep -q '^no GPU' "$folder/out" || report_failure "without a GPU it does not report that"

# Fake GPU on which op tests pass, model tests fail, there are no communicator tests, and training is bitwise
# reproducible, but not on several ranks.
# shellcheck disable=SC2317 # called by gpu_check.sh
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
    --training.fp8_recipe=mxfp8) echo "mxfp8 is emulated, which is slower than bf16" ;;
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
[ $code -eq 1 ] || report_failure "with failures the exit code is $code; $table"
expect() { grep -Eq "^$1 +\| $2 +\| +[0-9]+ \| $3" <<<"$table" || report_failure "$1 is not '$2': $3. $table"; }
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
expect "learns in blockwise" passed "multiplied, loss 100.5 after 100 steps, in bf16 100.5"
expect "learns in mxfp8" passed "emulated, loss 100.5 after 100 steps, in bf16 100.5"
expect "learns in nvfp4" passed "multiplied, loss 100.5"
expect "reproducible" passed "losses of 20 steps"
expect "CUDA graphs" passed "losses of 20 steps"
expect "tp 2 on one GPU" FAILED "20 steps, losses differ by at most 0.005"
expect "memcheck" passed "========= ERROR SUMMARY: 0 errors"
expect "memcheck, subset" passed "========= ERROR SUMMARY: 0 errors"
! grep -q 'did not finish' <<<"$table" || report_failure "all checks were finished. $table"

# After the time limit, it lists the checks that were not run, which is not a failure.
scripts/gpu_check.sh --output "$folder/output" --seconds 2 "$folder" >/dev/null 2>&1 || report_failure "nothing failed, but it reports a failure"
table=$(cat "$folder/output/table.txt")
expect "op tests" skipped "time limit reached"
grep -Eq '^[0-9]+ checks did not finish within the time limit: GPU; op tests; .*; memcheck; racecheck$' <<<"$table" ||
  report_failure "it does not name the omitted checks. $table"

# A simulation needs no GPU, takes fewer steps, and skips what simulated GPUs cannot show.
nvidia-smi() { return 9; }
code=0
scripts/gpu_check.sh --simulated --output "$folder/output" "$folder" >/dev/null 2>&1 || code=$?
table=$(cat "$folder/output/table.txt")
[ $code -eq 1 ] || complain "with failures the exit code of a simulation is $code; $table"
expect "GPU" passed "simulated"
expect "op tests" passed "3 tests"
expect "model tests" FAILED "0 passed; failed: Suite.Bad_cuda"
expect "learns in bf16" passed "loss 199.5 to 140.5"
expect "reproducible" passed "losses of 6 steps"
expect "tp 2 on one GPU" FAILED "6 steps, losses differ by at most 0.005"
expect "bench gemm" skipped "simulated GPUs have no speed"
expect "memcheck" skipped "simulated GPUs check every access"
expect "attention, 32k tokens" skipped "too long for a simulation"

# The most informative checks fit into the budget even if each takes its full time limit.
budget=$(sed -n 's/^budget=\([0-9]*\).*/\1/p' scripts/gpu_check.sh)
first=$(sed -n '/^# Most important checks/,/^# Optional checks/s/^check \("[^"]*"\|[a-z]*\) \([0-9]*\) .*/\2/p' scripts/gpu_check.sh |
  awk '{ sum += $1 } END { print sum + 0 }')
if [ "$first" -lt 300 ] || [ "$first" -gt "$budget" ]; then report_failure "the most informative checks may take $first of $budget seconds"; fi
