# Runs tests in kernel namespaces, to be sourced: with their own network, mounts and processes, which all end with the
# first process, however it ends, and leave nothing behind.
# shellcheck shell=bash

# Prints why namespaces are not available or which of <tool ...> is missing, or nothing if all is well.
why_no_namespaces() {
  local tool
  for tool in unshare nsenter ip mpirun pgrep "$@"; do
    command -v "$tool" >/dev/null || { echo "$tool is not installed" && return; }
  done
  [ "$(id -u)" -eq 0 ] || { echo "only root can create network namespaces" && return; }
  unshare --net --uts --ipc --mount --pid --fork --mount-proc \
    sh -c 'ip link add probe type bridge && mount -t tmpfs none /mnt' >/dev/null 2>&1 ||
    echo "network namespaces cannot be created here"
}

# in_namespaces <seconds> <script> <argument ...>: runs the script with MCPP_SCRATCH, an empty folder that is removed
# afterwards, and exits with its code, or with 77 if $reason says why namespaces are not available. Everything is killed
# after <seconds>.
in_namespaces() {
  local seconds=$1 code=0 scratch
  shift
  [ -z "$reason" ] || { echo "skipped: $reason" && exit 77; }
  scratch=$(mktemp -d)
  MCPP_SCRATCH=$scratch timeout --signal=KILL "$seconds" \
    unshare --net --uts --mount --pid --fork --kill-child --mount-proc bash "$@" || code=$?
  rm -rf "$scratch"
  [ "$code" -ne 137 ] || echo "FAILED: not done after $seconds s"
  exit "$code"
}
