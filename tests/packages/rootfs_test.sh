#!/usr/bin/env bash
# Tests the packages on a minimal Debian 12, which debootstrap installs from the network: rootfs_test.sh BUILD
# The wheel needs only Python there; the Debian package is installed with apt; the last stage of Containerfile is built if
# there is buildah. Skips (77) unless run as root, with debootstrap and a network.
set -euo pipefail
tests=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$tests/../.." && pwd)
build=$(cd "$1" && pwd)
skip() { echo "skipped: $*" && exit 77; }
[ "$(id -u)" -eq 0 ] || skip "needs root"
for tool in debootstrap unshare patchelf cpack dpkg-shlibdeps; do
  command -v $tool >/dev/null || skip "$tool is missing"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "rootfs: $*" >&2 && exit 1; }
unshare --mount true 2>/dev/null || skip "no mount namespaces"

system=$work/system
debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv bookworm "$system" http://deb.debian.org/debian >"$work/log" 2>&1 ||
  { tail -n 3 "$work/log" && skip "debootstrap fails"; }
cp -a "$system" "$work/base"
"$root/scripts/package.sh" wheel --output "$system/tmp" "$build" >/dev/null
deb=$("$root/scripts/package.sh" deb --output "$system/tmp" "$build")
cp "$tests/run.toml" "$system/tmp"
cp -L /etc/resolv.conf "$system/etc" || true

# inside <commands>: runs them in the system, in /tmp.
inside() {
  # shellcheck disable=SC2016 # the inner shell expands them
  unshare --mount --pid --fork bash -c '
    mount -t proc proc "$1/proc" && mount --rbind /sys "$1/sys" && mount --rbind /dev "$1/dev" &&
      exec chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive bash -euc "cd /tmp; $2"' \
    bash "$system" "$1" >"$work/log" 2>&1 || { tail -n 40 "$work/log" && fail "$1"; }
}

inside 'python3 -m venv venv && venv/bin/pip install --quiet --no-index megatron_cpp-*.whl'
inside 'venv/bin/python -c "import megatron_cpp; megatron_cpp.run([\"--version\"])"'
inside 'venv/bin/megatron_cpp pretrain run.toml --checkpoint.save=wheel'
grep -q '^ended at iteration 2 of 2' "$work/log" || fail "training with the wheel does not end"

inside 'apt-get update && apt-get install -y --no-install-recommends ./megatron-cpp_*.deb'
inside 'megatron_cpp pretrain run.toml --checkpoint.save=deb && megatron_cpp checkpoint diff deb wheel'
# Several ranks need Open MPI, for the wheel too.
inside '! megatron_cpp-pretrain run.toml -n 2'
grep -q 'mpirun is not installed' "$work/log" || fail "the missing mpirun is not named: $(cat "$work/log")"
inside 'apt-get install -y --no-install-recommends openmpi-bin openssh-client procps'
inside 'megatron_cpp-pretrain run.toml -n 2 --checkpoint.save=deb_2 && venv/bin/megatron_cpp-pretrain run.toml -n 2 --checkpoint.save=wheel_2'
inside 'megatron_cpp checkpoint diff deb_2 wheel_2'
inside 'apt-get purge -y megatron-cpp && ! ls -d /usr/share/megatron_cpp /usr/share/doc/megatron-cpp'
echo "the wheel and ${deb##*/} train on a minimal Debian 12, on 1 and 2 ranks"

command -v buildah >/dev/null || { echo "buildah is missing: Containerfile is not tested" && exit 0; }
containers() { buildah --root "$work/containers" --runroot "$work/run" --storage-driver vfs "$@"; }
export BUILDAH_ISOLATION=chroot
mkdir -p "$work/context/packages"
cp "$deb" "$work/context/packages"
# The first stage compiles the sources in a container; here it provides the package that was just built.
awk '/ AS build$/ { print "FROM scratch AS build\nCOPY packages /packages"; skip = 1; next } /^FROM / { skip = 0 } !skip' \
  "$root/Containerfile" >"$work/context/Containerfile"
container=$(containers from scratch)
containers add --quiet "$container" "$work/base" / >/dev/null
containers commit --quiet "$container" docker.io/library/debian:12-slim >/dev/null
containers build --pull-never --tag megatron_cpp "$work/context" >"$work/log" 2>&1 || { tail -n 40 "$work/log" && fail "buildah build"; }
container=$(containers from --pull-never megatron_cpp)
containers run --volume "$tests:/work" "$container" -- megatron_cpp-pretrain run.toml -n 2 --checkpoint.save=/tmp/run >"$work/log" 2>&1 ||
  { cat "$work/log" && fail "training in the container"; }
grep -q '^ended at iteration 2 of 2' "$work/log" || fail "training in the container does not end"
echo "the image of Containerfile trains on 2 ranks"
