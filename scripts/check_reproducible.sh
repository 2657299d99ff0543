#!/usr/bin/env bash
# Verifies that builds of the same sources in different folders are identical: the program, byte by byte, and the Debian
# package.
#
#   scripts/check_reproducible.sh [--full] [build/release]
#
#   --full   compiles everything without ccache in the second folder (half an hour on two cores)
#
# Compares the build of the preset release (default build/release) with a build of a copy of the sources in a folder with
# a different path. By default this build takes the objects from ccache, and only the library base is also compiled
# without ccache, in a build folder of a different depth; --full compiles the whole program that way. No path of a build
# may occur in the program.
#
# Exit code: 0 identical, 1 different, 77 there is no ccache, which is needed without --full.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
fail() {
  echo "scripts/check_reproducible.sh: $*" >&2
  exit "${code:-1}"
}

target=mcpp_base result=libmcpp_base.a build=""
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --full) target=megatron_cpp result=megatron_cpp ;;
    -*) code=2 fail "$1: unknown option; see --help" ;;
    *) build=$1 ;;
  esac
  shift
done
build=${build:-$root/build/release}
[ -x "$build/megatron_cpp" ] || code=2 fail "$build/megatron_cpp does not exist; run scripts/build.sh release"
build=$(cd "$build" && pwd)
[ $target = megatron_cpp ] || command -v ccache >/dev/null || code=77 fail "ccache is missing; use --full"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
logged() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2 && fail "$1 failed"; }; }

# A copy of the working tree and of its state in Git.
copy=$work/a/copy/with/another/path
mkdir -p "$copy"
(cd "$root" && tar --exclude=./build --exclude=./runs -cf - .) | tar -C "$copy" -xf -

# compare <file of the build> <file of the copy>
compare() {
  cmp "$1" "$2" || fail "$1 depends on the folder of the build"
  echo "identical: $(sha256sum "$1" | cut -d ' ' -f 1) ${1##*/}"
}

if [ $target = mcpp_base ]; then
  logged cmake -S "$copy" --preset release -DMCPP_BUILD_TESTS=OFF
  logged cmake --build "$copy/build/release" --target megatron_cpp
  compare "$build/megatron_cpp" "$copy/build/release/megatron_cpp"
fi
logged cmake -S "$copy" -B "$work/out" -G Ninja -DCMAKE_BUILD_TYPE=Release -DMCPP_BUILD_TESTS=OFF -DCCACHE=OFF
logged cmake --build "$work/out" --target $target
compare "$build/$result" "$work/out/$result"
! strings -a "$build/megatron_cpp" | grep -F -e "$root/" -e "$build/" -e "$work/" || fail "the program contains paths of the build"

for folder in "$build" "$([ $target = mcpp_base ] && echo "$copy/build/release" || echo "$work/out")"; do
  mkdir -p "$work/packages$folder"
  logged "$root/scripts/package.sh" deb --output "$work/packages$folder" "$folder"
  debs+=("$work/packages$folder"/*.deb)
done
compare "${debs[@]}"
