#!/usr/bin/env bash
# Tests the results of cmake --install and cpack in empty root folders: install_test.sh BUILD
# The package test is skipped (77) if dpkg or its tools for finding libraries are missing.
set -euo pipefail
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "install: $*" >&2; exit 1; }
export MEGATRON_CPP="" # ignores the caller's setting

# try <prefix>: tests everything from a folder outside the sources.
try() {
  local bin=$1/bin share=$1/share name out manual
  mkdir -p "$work/elsewhere"
  cd "$work/elsewhere"
  for name in bin/megatron_cpp bin/megatron_cpp-pretrain bin/megatron_cpp-launch share/megatron_cpp/scripts/pretrain.sh \
    share/megatron_cpp/scripts/slurm_pretrain.sbatch share/megatron_cpp/configs/quickstart.toml \
    share/megatron_cpp/configs/hardware/h100_sxm.toml share/bash-completion/completions/megatron_cpp \
    share/zsh/vendor-completions/_megatron_cpp share/doc/megatron-cpp/README.md; do
    [ -e "$1/$name" ] || fail "$name is missing"
  done
  [ -z "$(find "$1" -type l ! -exec test -e {} \; -print)" ] || fail "there are dangling links"
  [ -z "$(find "$1" -name '*.h' -o -name '*.a' -o -name '*tests*')" ] || fail "development files are installed"
  "$bin/megatron_cpp" --version >/dev/null
  "$bin/megatron_cpp" config configs/gpt2_124m.toml --optimizer.lr=0.5 | grep -q '^lr = 0.5' || fail "a shipped configuration is not found"
  "$bin/megatron_cpp" plan configs/gpt2_124m.toml --hardware=h100_sxm --world_size=8 >/dev/null || fail "shipped hardware is not found"
  out=$("$bin/megatron_cpp" config configs/no_such.toml 2>&1) && fail "a missing configuration is accepted"
  grep -q 'configs/no_such.toml' <<<"$out" || fail "the missing file is not named: $out"
  out=$("$bin/megatron_cpp-pretrain" configs/gpt2_124m.toml -n 2 2>&1) && fail "megatron_cpp-pretrain accepts missing data"
  grep -q 'parameters: 124' <<<"$out" || fail "megatron_cpp-pretrain does not start the program: $out"
  "$bin/megatron_cpp-launch" --help | grep -q -e '--max_restarts' || fail "megatron_cpp-launch --help"
  out=$("$bin/megatron_cpp-launch" configs/gpt2_124m.toml 2>&1) && fail "launch accepts a run without data"
  grep -q "there is no file .data.openwebtext" <<<"$out" || fail "megatron_cpp-launch does not start the program: $out"
  slurm "$share/megatron_cpp/scripts/slurm_pretrain.sbatch"
  manual=$(echo "$share"/man/man1/megatron_cpp.1*) # compressed in the Debian package
  for name in $("$bin/megatron_cpp" --list_options | cut -f1); do
    zgrep -qx "\.B $name" "$manual" || fail "the manual page lacks $name"
  done
  if command -v man >/dev/null; then
    out=$(man --warnings -l "$manual" 2>&1 >/dev/null) || true
    [ -z "$out" ] || fail "man reports: $out"
  fi
}

# slurm <script>: a copy of the script, as Slurm runs it, finds the other scripts by Slurm's record of the job.
slurm() {
  mkdir -p "$work/spool" "$work/stand-ins"
  cp "$1" "$work/spool/slurm_script"
  printf '#!/bin/sh\necho "JobId=1 JobName=x"\necho "   Command=%s --x"\n' "$1" >"$work/stand-ins/scontrol"
  printf '#!/bin/sh\nexit 2\n' >"$work/stand-ins/srun"
  chmod +x "$work/stand-ins/"*
  local out
  out=$(PATH=$work/stand-ins:$PATH SLURM_SUBMIT_DIR=$PWD SLURM_JOB_ID=1 "$work/spool/slurm_script" configs/gpt2_124m.toml -n 1 2>&1) &&
    fail "the job script accepts a run without data"
  grep -q "there is no file .data.openwebtext" <<<"$out" || fail "the job script does not find launch.sh: $out"
}

DESTDIR=$work/root cmake --install "$build" --prefix /opt/megatron >"$work/log" || { cat "$work/log" >&2; fail "cmake --install"; }
try "$work/root/opt/megatron"
[ "$(ls "$work/root")" = opt ] || fail "something is installed outside the prefix: $(ls "$work/root")"

for tool in cpack dpkg dpkg-shlibdeps; do
  command -v $tool >/dev/null || { echo "skipped: $tool is missing"; exit 77; }
done
cd "$work"
cpack -G DEB --config "$build/CPackConfig.cmake" -B "$work/package" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "cpack"; }
package=$(echo "$work"/package/*.deb)
[ "$(dpkg -f "$package" Package)" = megatron-cpp ] || fail "the package is called $(dpkg -f "$package" Package)"
for library in libdnnl libhdf5 libsentencepiece libopenmpi; do
  dpkg -f "$package" Depends | grep -q $library || fail "the package does not depend on $library: $(dpkg -f "$package" Depends)"
done
dpkg -x "$package" "$work/unpacked"
try "$work/unpacked/usr"
[ "$(ls "$work/unpacked")" = usr ] || fail "the package has files outside /usr"
if command -v lintian >/dev/null; then
  lintian --allow-root "$package" >"$work/log" 2>&1 || fail "lintian: $(cat "$work/log")"
  [ ! -s "$work/log" ] || fail "lintian: $(cat "$work/log")"
fi
echo "installed and packaged: $(du -h "$package" | cut -f1) of $(basename "$package")"
