#!/usr/bin/env bash
# Trains a configuration on several ranks, on this machine or on many:
#
#   scripts/pretrain.sh configs/quickstart_2_ranks.toml -n 2
#   scripts/pretrain.sh configs/llama_8b.toml -n 64 --hostfile hosts --parallel.tensor_model_parallel_size=8
#   sbatch --nodes=8 --ntasks-per-node=8 --wrap "scripts/pretrain.sh configs/llama_8b.toml --srun"
#
#   -n N             ranks (default 1; with --srun what the job has)
#   --hostfile FILE  machines, one "name slots=N" a line, as mpirun reads it; every machine needs this folder at this path
#   --srun           start with Slurm's srun instead of mpirun
# Everything else goes to megatron_cpp pretrain. MEGATRON_CPP names another program than build/release/megatron_cpp.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
program=${MEGATRON_CPP:-$here/build/release/megatron_cpp}

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
fail() {
  echo "scripts/pretrain.sh: $*" >&2
  exit 2
}

ranks="" hostfile="" launcher=mpirun arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    -n | --hostfile) [ $# -ge 2 ] || fail "$1 needs a value" ;;&
    -n) ranks=$2 && shift ;;
    --hostfile) hostfile=$2 && shift ;;
    --srun) launcher=srun ;;
    *) arguments+=("$1") ;;
  esac
  shift
done

[ ${#arguments[@]} -gt 0 ] || { usage && exit 2; }
[ -x "$program" ] || fail "$program is not there; build it with scripts/build.sh, or name it with MEGATRON_CPP"
[[ -z $ranks || $ranks =~ ^[1-9][0-9]*$ ]] || fail "-n $ranks: the number of ranks must be a whole number of at least 1"
[ -z "$hostfile" ] || [ -r "$hostfile" ] || fail "$hostfile: no such file"
[ -z "$hostfile" ] || [ $launcher = mpirun ] || fail "--hostfile is for mpirun; srun takes the machines of its job"
command -v $launcher >/dev/null || fail "$launcher is not installed; scripts/install_dependencies.sh installs mpirun"

if [ $launcher = srun ]; then
  exec srun --mpi=pmix ${ranks:+--ntasks="$ranks"} "$program" pretrain "${arguments[@]}"
fi

# Ranks divide the cores of a machine among themselves; idle ones give theirs away, so there may be more than cores.
options=(-n "${ranks:-1}" --bind-to none)
if [ -n "$hostfile" ]; then options+=(--hostfile "$hostfile"); else options+=(--oversubscribe); fi
[ "$(id -u)" -ne 0 ] || options+=(--allow-run-as-root)

# Ranks see a terminal of mpirun's even where its output goes to a file, which the progress line would only clutter.
[[ -t 1 || "${arguments[*]}" == *log_progress* ]] || arguments+=(--logging.log_progress=false)

# mpirun ends its ranks at once on SIGTERM and Ctrl-C, before they could save; SIGUSR1 it passes on to them. In a process
# group of its own it does not see the terminal's Ctrl-C. A second signal ends the run as it is.
set -m
mpirun "${options[@]}" "$program" pretrain "${arguments[@]}" </dev/null &
job=$! signals=0
stop() {
  signals=$((signals + 1))
  if [ $signals -eq 1 ]; then kill -USR1 "$job"; else kill -TERM "$job"; fi
}
trap stop TERM INT USR1 HUP
while true; do
  code=0
  wait "$job" || code=$?
  kill -0 "$job" 2>/dev/null || break # otherwise a signal ended the wait, not the run
done
# A rank that a signal killed, not one of ours: the others are gone with it, and a new start may go well.
if [ "$code" -gt 128 ] && [ $signals -eq 0 ]; then
  echo "scripts/pretrain.sh: a rank was killed (mpirun's exit code $code)" >&2
  code=75
fi
exit "$code"
