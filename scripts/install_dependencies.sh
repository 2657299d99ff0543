#!/usr/bin/env bash
# Installs the Debian packages that building and running need, and those named as arguments, as far as they are missing.
# Does nothing when all are there.
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config git ca-certificates
  libdnnl-dev libhwy-dev libopenmpi-dev openmpi-bin openssh-client
  libhdf5-dev hdf5-tools libsentencepiece-dev libtomlplusplus-dev nlohmann-json3-dev libxxhash-dev zlib1g-dev
  libpcre2-dev libicu-dev liburing-dev libzstd-dev
  libgtest-dev libgmock-dev
  procps iproute2 dropbear-bin # for several hosts in tests: an ssh server that does not start with its installation
  "$@"
)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

run_as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "These packages are missing: ${missing[*]}" >&2
    echo "Install them as root: apt-get install ${missing[*]}" >&2
    exit 2
  fi
  run_as_root=(sudo)
fi
echo "installing: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${run_as_root[@]}" apt-get update &&
  "${run_as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  cat "$log" >&2
  echo "installing packages failed" >&2
  exit 1
fi
