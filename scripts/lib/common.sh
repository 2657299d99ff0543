# Functions shared by scripts/pretrain.sh and scripts/launch.sh, which source this file.
# shellcheck shell=bash disable=SC2034 # variables set here are read there

unset CDPATH # cd would search it
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=${MEGATRON_CPP:-$root/build/release/megatron_cpp}
# If installed, this is <prefix>/share/megatron_cpp, without sources and builds.
[ -n "${MEGATRON_CPP:-}" ] || [ -e "$root/CMakeLists.txt" ] || program=$(cd "$root/../.." && pwd)/bin/megatron_cpp

# usage: prints the header comment of the script.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }

log_message() { echo "scripts/${0##*/}: $*" >&2 || true; } # a closed terminal is not an error
fail() { # exits with code 2, bad input
  log_message "$*"
  exit 2
}

# wait_for <job>: waits until the job has exited, even if signals interrupt the wait. Sets `code` to its exit code.
wait_for() {
  while kill -0 "$1" 2>/dev/null; do wait "$1" || true; done
  code=0
  wait "$1" || code=$? # bash remembers the code of an exited job
}

# oom_kills <root>: prints how many processes the kernel's out-of-memory killer has killed in this control group, or on
# this host if groups do not count them. Tests pass a `root` that contains proc/ and sys/.
oom_kills() {
  local root=$1 controllers path file count
  while IFS=: read -r _ controllers path; do
    case ",$controllers," in
      *,memory,*) file=$root/sys/fs/cgroup/memory$path/memory.oom_control ;;
      ,,) file=$root/sys/fs/cgroup$path/memory.events ;;
      *) continue ;;
    esac
    count=$(sed -n 's/^oom_kill //p' "$file" 2>/dev/null) || count=""
    if [ -n "$count" ]; then
      echo "$count"
      return
    fi
  done <"$root/proc/self/cgroup"
  count=$(sed -n 's/^oom_kill //p' "$root/proc/vmstat" 2>/dev/null) || count=""
  echo "${count:-0}"
}

# read_clock: sets `now` to the uptime in seconds. Unlike SECONDS of bash, it does not change when the clock is set.
read_clock() { read -r now _ </proc/uptime && now=${now%.*}; }

# check_number <option> <value> <minimum>
check_number() {
  if ! [[ $2 =~ ^(0|[1-9][0-9]{0,8})$ ]] || [ "$2" -lt "$3" ]; then fail "$1 $2: must be an integer of at least $3"; fi
}

# parse_options <argument ...>: sets `ranks`, `hostfile`, `launcher`, and `arguments`, which go to the program. A script
# declares additional options in `own_options`; its function take_option <option> <value> is called with each.
ranks="" hostfile="" launcher=mpirun arguments=()
declare -A own_options=() # option -> value
parse_options() {
  local option value
  while [ $# -gt 0 ]; do
    option=${1%%=*}
    case $option in
      -h | --help) usage && exit 0 ;;
      --srun) launcher=srun ;;
      *)
        if [[ $option != -n && $option != --hostfile && -z ${own_options[$option]+x} ]]; then
          arguments+=("$1")
          shift
          continue
        elif [[ $1 == *=* ]]; then
          value=${1#*=}
        else
          [ $# -ge 2 ] || fail "$1 needs a value"
          value=$2
          shift
        fi
        [ -n "$value" ] || fail "$option needs a value"
        case $option in
          -n) ranks=$value ;;
          --hostfile) hostfile=$value ;;
          *) take_option "$option" "$value" ;;
        esac
        ;;
    esac
    shift
  done
  [ ${#arguments[@]} -gt 0 ] || { usage && exit 2; }
}

check_placement() {
  { [ -f "$program" ] && [ -x "$program" ]; } ||
    fail "$program does not exist; build it with scripts/build.sh, or set MEGATRON_CPP"
  [ -z "$ranks" ] || check_number -n "$ranks" 1
  [ -z "$hostfile" ] || { [ -r "$hostfile" ] && [ ! -d "$hostfile" ]; } || fail "--hostfile $hostfile: is not a readable file"
  [ -z "$hostfile" ] || [ $launcher = mpirun ] || fail "--hostfile works with mpirun only; srun uses the hosts of its job"
  command -v $launcher >/dev/null || fail "$launcher is not installed; the package openmpi-bin contains mpirun"
}
