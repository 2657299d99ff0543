#!/usr/bin/env bash
# Builds packages of the program for hosts without a compiler: a Debian package, or a wheel for pip.
#
#   scripts/package.sh deb [--output FOLDER] [build/release]
#   scripts/package.sh wheel [--output FOLDER] [build/release]
#
#   --output FOLDER  folder of the package; default build/packages
#
# Without a build folder it builds the preset release first. The Debian package depends on Debian's libraries. The wheel
# contains the libraries it needs, except those that all Linux distributions have, with the licenses of their Debian
# packages; building it needs patchelf. Packages of one commit are identical: SOURCE_DATE_EPOCH, the time of their files,
# defaults to the time of the commit. Prints the path of the package. docs/packages.md has more.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
fail() {
  echo "scripts/package.sh: $*" >&2
  exit 2
}

kind="" build="" output=$root/build/packages
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --output) [ $# -ge 2 ] || fail "$1 needs a value" && output=$2 && shift ;;
    -*) fail "$1: unknown option; see --help" ;;
    deb | wheel) [ -z "$kind" ] || fail "$1: only one kind is allowed" && kind=$1 ;;
    *) [ -z "$build" ] || fail "$1: only one build folder is allowed" && build=$1 ;;
  esac
  shift
done
[ -n "$kind" ] || fail "name the kind of package: deb or wheel; see --help"
if [ -z "$build" ]; then
  "$root/scripts/build.sh" release megatron_cpp >&2
  build=$root/build/release
fi
[ -x "$build/megatron_cpp" ] || fail "$build/megatron_cpp does not exist; run scripts/build.sh release"
build=$(cd "$build" && pwd)
mkdir -p "$output"
output=$(cd "$output" && pwd)
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct 2>/dev/null || date +%s); fi
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
needs() { for tool in "$@"; do command -v "$tool" >/dev/null || fail "$tool is missing; install it to build this package"; done; }
logged() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2 && fail "$1 failed"; }; }

make_deb() {
  needs cpack dpkg-shlibdeps gzip
  logged cpack -G DEB --config "$build/CPackConfig.cmake" -B "$work/deb"
  cp "$work"/deb/*.deb "$output"
  (cd "$work/deb" && printf "$output/%s\n" *.deb)
}

# Libraries that the wheel does not contain, because Python's specification of manylinux requires hosts to have them.
host_libraries='^(ld-linux-x86-64\.so\.2|libc\.so\.6|libm\.so\.6|libdl\.so\.2|librt\.so\.1|libpthread\.so\.0|libresolv\.so\.2|libutil\.so\.1|libnsl\.so\.1|libgcc_s\.so\.1|libstdc\+\+\.so\.6|libz\.so\.1|linux-vdso\.so\.1)$'

# libraries <program>: prints the name and path of each library that the program loads, except host libraries.
libraries() {
  local missing
  missing=$(env -u LD_LIBRARY_PATH ldd "$1" | awk '/not found/ { print $1 }')
  [ -z "$missing" ] || fail "libraries are missing: ${missing//$'\n'/ }"
  env -u LD_LIBRARY_PATH ldd "$1" | awk -v host="$host_libraries" '$2 == "=>" && $1 !~ host { print $1, $3 }' | sort
}

# copy_license <library> <folder>: copies the license of the Debian package of a library.
copy_license() {
  local package path
  path=$(readlink -f "$1")
  # Debian lists some libraries below /lib, which is a link to /usr/lib.
  package=$(dpkg -S "$path" 2>/dev/null || dpkg -S "${path#/usr}" 2>/dev/null) ||
    fail "$1 belongs to no Debian package, so its license is unknown"
  package=${package%%:*}
  mkdir -p "$2/$package"
  cp "/usr/share/doc/$package/copyright" "$2/$package/copyright"
}

make_wheel() {
  needs cmake patchelf dpkg python3 objdump
  local stage=$work/wheel package=$work/wheel/megatron_cpp name path glibc
  mkdir -p "$package/lib" "$work/licenses"
  logged cmake --install "$build" --prefix "$work/installed" --strip
  mkdir "$package/bin" "$package/share"
  cp "$work/installed/bin/megatron_cpp" "$package/bin"
  cp -r "$work/installed/share/megatron_cpp" "$package/share"
  cp "$root"/scripts/packages/megatron_cpp/*.py "$package"
  libraries "$package/bin/megatron_cpp" >"$work/libraries"
  while read -r name path; do
    cp -L "$path" "$package/lib/$name"
    chmod 644 "$package/lib/$name"
    # shellcheck disable=SC2016 # the dynamic linker expands $ORIGIN
    patchelf --set-rpath '$ORIGIN' "$package/lib/$name"
    copy_license "$path" "$work/licenses"
  done <"$work/libraries"
  # shellcheck disable=SC2016
  patchelf --set-rpath '$ORIGIN/../lib' "$package/bin/megatron_cpp"
  path=$(libraries "$package/bin/megatron_cpp" | awk -v own="$package/" 'index($2, own) != 1 { print $1 }')
  [ -z "$path" ] || fail "the program would load libraries from outside of the wheel: ${path//$'\n'/ }"
  glibc=$(objdump -T "$package"/bin/megatron_cpp "$package"/lib/* | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1)
  python3 "$root/scripts/packages/make_wheel.py" "$stage" "$(version)" "manylinux_2_${glibc#GLIBC_2.}_x86_64" "$work/licenses" "$output"
}

version() { sed -n 's/^set(CPACK_PACKAGE_VERSION "\(.*\)")$/\1/p' "$build/CPackConfig.cmake"; }

make_"$kind"
