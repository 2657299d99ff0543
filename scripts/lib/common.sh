# What scripts/pretrain.sh and scripts/launch.sh share; to be sourced.
# shellcheck shell=bash disable=SC2034 # what is set here is read there

unset CDPATH # which would take cd elsewhere
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
program=${MEGATRON_CPP:-$here/build/release/megatron_cpp}
# Installed, in <prefix>/share/megatron_cpp, without sources and builds.
[ -n "${MEGATRON_CPP:-}" ] || [ -e "$here/CMakeLists.txt" ] || program=$(cd "$here/../.." && pwd)/bin/megatron_cpp

# The comment at the top of the script, up to its first command.
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }

say() { echo "scripts/${0##*/}: $*" >&2 || true; } # a terminal that was closed ends nothing
fail() {
  say "$*"
  exit 2
}

# wait_for <job>: until it has ended, however many signals end the waiting before; sets `code` to its exit code.
wait_for() {
  while kill -0 "$1" 2>/dev/null; do wait "$1" || true; done
  code=0
  wait "$1" || code=$? # bash keeps it
}

# oom_kills <root>: how many processes the kernel has ended for want of memory in this control group, or on this machine where
# groups do not count them. `root` is what stands before /proc and /sys, for tests.
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

# read_clock: sets `now`, in seconds. Who sets the machine's clock moves the time of day, and with it bash's SECONDS, not this.
read_clock() { read -r now _ </proc/uptime && now=${now%.*}; }

# check_number <option> <value> <least>
check_number() {
  if ! [[ $2 =~ ^(0|[1-9][0-9]{0,8})$ ]] || [ "$2" -lt "$3" ]; then fail "$1 $2: must be a whole number of at least $3"; fi
}

# parse_options <word ...>: fills ranks, hostfile, launcher, and `arguments`, which are the program's. Options that a script
# has beside these it declares in `own_options` and gets by its function take_option <option> <value>.
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
    fail "$program is not there; build it with scripts/build.sh, or name it with MEGATRON_CPP"
  [ -z "$ranks" ] || check_number -n "$ranks" 1
  [ -z "$hostfile" ] || { [ -r "$hostfile" ] && [ ! -d "$hostfile" ]; } || fail "--hostfile $hostfile: is no file that can be read"
  [ -z "$hostfile" ] || [ $launcher = mpirun ] || fail "--hostfile is for mpirun; srun takes the machines of its job"
  command -v $launcher >/dev/null || fail "$launcher is not installed; scripts/install_dependencies.sh installs mpirun"
}
