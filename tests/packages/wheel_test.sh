#!/usr/bin/env bash
# Tests the wheel in a new virtual environment: wheel_test.sh BUILD
# Skips (77) if patchelf or Python's venv is missing.
set -euo pipefail
tests=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
for tool in patchelf python3 dpkg objdump; do
  command -v $tool >/dev/null || { echo "skipped: $tool is missing"; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "wheel: $*" >&2; exit 1; }
unset PYTHONPATH LD_LIBRARY_PATH
export MEGATRON_CPP="" PIP_DISABLE_PIP_VERSION_CHECK=1

python3 -m venv "$work/venv" >"$work/log" 2>&1 || { echo "skipped: python3 -m venv fails" && exit 77; }
mkdir "$work/first" "$work/second" "$work/elsewhere"
wheel=$("$tests/../../scripts/package.sh" wheel --output "$work/first" "$build")
[[ $wheel == "$work"/first/megatron_cpp-*-py3-none-manylinux_2_*_x86_64.whl ]] || fail "unexpected path: $wheel"
(umask 077 && TZ=Asia/Tokyo "$tests/../../scripts/package.sh" wheel --output "$work/second" "$build" >/dev/null)
cmp "$wheel" "$work/second/${wheel##*/}" || fail "two wheels of one build differ"

"$work/venv/bin/python" -m pip install --quiet --no-index "$wheel" || fail "pip install"
cd "$work/elsewhere"
python=$work/venv/bin/python
cp "$tests/run.toml" .
[ "$("$python" -c "import megatron_cpp; megatron_cpp.run(['--version'])")" = "$("$build/megatron_cpp" --version)" ] ||
  fail "run(['--version']) differs from the program's"
out=$("$python" -c "import megatron_cpp; assert megatron_cpp.run(['pretrain', 'run.toml']) == 0") || fail "training fails: $out"
grep -q '^ended at iteration 2 of 2' <<<"$out" || fail "training does not end: $out"
"$work/venv/bin/megatron_cpp" checkpoint verify run | grep -q 'iter_0000002: intact' || fail "the checkpoint is not intact"
"$work/venv/bin/megatron_cpp" config configs/gpt2_124m.toml >/dev/null || fail "a shipped configuration is not found"
for name in pretrain launch; do
  "$work/venv/bin/megatron_cpp-$name" --help >/dev/null || fail "megatron_cpp-$name --help"
done
if command -v mpirun >/dev/null; then
  "$work/venv/bin/megatron_cpp-pretrain" run.toml -n 2 --checkpoint.save=ranks >"$work/log" 2>&1 || { cat "$work/log" && fail "2 ranks"; }
fi

# expect_code <code> <command ...>
expect_code() {
  local expected=$1 code=0
  shift
  out=$("$@" 2>&1) || code=$?
  [ $code -eq "$expected" ] || fail "exit code $code instead of $expected: $*: $out"
}
expect_code 2 "$work/venv/bin/megatron_cpp" no_such_command
expect_code 2 "$python" -m megatron_cpp pretrain no_such.toml
grep -q 'no_such.toml' <<<"$out" || fail "the missing file is not named: $out"
expect_code 2 "$work/venv/bin/megatron_cpp-pretrain" no_such.toml
expect_code 3 "$python" -c "import megatron_cpp, sys; sys.exit(megatron_cpp.run(['no_such_command'], check=False) + 1)"
expect_code 1 "$python" -c "import megatron_cpp; megatron_cpp.run(['no_such_command'])"
grep -q 'CalledProcessError.*exit status 2' <<<"$out" || fail "run() does not raise: $out"
# Ctrl-C reaches both processes: the program saves and exits with 85, and run() waits for it.
expect_code 85 "$python" - <<'END'
import pathlib, signal, subprocess, sys, time
code = "import megatron_cpp, sys; sys.exit(megatron_cpp.run(['pretrain', 'run.toml', '--training.train_iters=1000000', '--checkpoint.save=stopped'], check=False))"
process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.DEVNULL)
while not list(pathlib.Path("stopped").glob("iter_*")):
    assert process.poll() is None, process.returncode
    time.sleep(0.05)
import os
os.killpg(process.pid, signal.SIGINT)
sys.exit(process.wait())
END
echo "$(du -h "$wheel" | cut -f1) ${wheel##*/}"
