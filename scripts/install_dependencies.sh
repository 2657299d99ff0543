#!/usr/bin/env bash
# Installs missing Debian packages that building, testing and running need, and the packages named as arguments. Does
# nothing if all are installed.
#
#   scripts/install_dependencies.sh [package ...]
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config git ca-certificates
  libdnnl-dev libhwy-dev libopenmpi-dev openmpi-bin openssh-client
  libhdf5-dev hdf5-tools libsentencepiece-dev libtomlplusplus-dev nlohmann-json3-dev libxxhash-dev zlib1g-dev
  libpcre2-dev libicu-dev liburing-dev libzstd-dev libcurl4-openssl-dev
  libgtest-dev libgmock-dev
  procps iproute2 dropbear-bin # tests with several hosts; dropbear-bin does not start a server
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
