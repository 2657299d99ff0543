#!/usr/bin/env bash
# Trains a configuration on several ranks, on this machine or on many, once (scripts/launch.sh also starts it again):
#
#   scripts/pretrain.sh configs/quickstart_2_ranks.toml -n 2
#   scripts/pretrain.sh configs/llama_8b.toml -n 64 --hostfile hosts --parallel.tensor_model_parallel_size=8
#   sbatch --nodes=8 --ntasks-per-node=8 --wrap "scripts/pretrain.sh configs/llama_8b.toml --srun" (or slurm_pretrain.sbatch)
#
#   -n N             ranks (default 1; with --srun what the job has)
#   --hostfile FILE  machines, one "name slots=N" a line, as mpirun reads it; every machine needs this folder at this path
#   --srun           start with Slurm's srun instead of mpirun
# Everything else goes to megatron_cpp pretrain. MEGATRON_CPP names another program than build/release/megatron_cpp.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "$(readlink -f "$0")")/lib/common.sh"

parse_options "$@"
check_placement

if [ $launcher = srun ]; then
  start=(srun --mpi=pmix ${ranks:+--ntasks="$ranks"})
else
  # Ranks divide the cores of a machine among themselves; idle ones give theirs away, so there may be more than cores.
  start=(mpirun -n "${ranks:-1}" --bind-to none)
  if [ -n "$hostfile" ]; then start+=(--hostfile "$hostfile"); else start+=(--oversubscribe); fi
  [ "$(id -u)" -ne 0 ] || start+=(--allow-run-as-root)
  # A machine that falls silent is found after some 25 seconds, at its start and while it runs; Open MPI's own 8 minutes
  # and ssh's endless wait are too long. What the environment says goes first.
  export OMPI_MCA_oob_tcp_keepalive_time=${OMPI_MCA_oob_tcp_keepalive_time:-10}
  export OMPI_MCA_oob_tcp_keepalive_intvl=${OMPI_MCA_oob_tcp_keepalive_intvl:-5}
  export OMPI_MCA_oob_tcp_keepalive_probes=${OMPI_MCA_oob_tcp_keepalive_probes:-3}
  [ -n "${OMPI_MCA_plm_rsh_agent:-}" ] || export OMPI_MCA_plm_rsh_args=${OMPI_MCA_plm_rsh_args:--o BatchMode=yes -o \
ConnectTimeout=10 -o ServerAliveInterval=10 -o ServerAliveCountMax=3}
fi

# Where this script is killed, the kernel ends the launcher, which ends its ranks.
if setpriv --pdeathsig TERM true 2>/dev/null; then start=(setpriv --pdeathsig TERM "${start[@]}"); fi

# mpirun ends its ranks at once on SIGTERM and Ctrl-C, before they could save; SIGUSR1 it passes on to them. In a process
# group of its own it does not see the terminal's Ctrl-C. A second signal ends the run as it is, a third also a launcher
# that does not end by itself, because it waits for a machine that is gone.
job="" signals=0
# shellcheck disable=SC2317 # reached by the trap
interrupt_twice() { { kill -INT "$job" && sleep 0.2 && kill -INT "$job"; } || true; } # for srun; it passes SIGTERM on
# shellcheck disable=SC2317 # reached by the trap
stop() {
  [ -n "$job" ] || exit 143
  signals=$((signals + 1))
  case $signals in
    1) kill -USR1 "$job" || true ;; # it may just have ended
    2) if [ "$launcher" = srun ]; then interrupt_twice; else kill -TERM "$job" || true; fi ;;
    *)
      pkill -KILL -P "$job" || true
      kill -KILL "$job" || true
      ;;
  esac
}
# A launcher may miss the end of its ranks and wait for ever: all of its children are zombies then.
zombie_seconds=${MCPP_ZOMBIE_SECONDS:-30}
has_only_zombies() {
  local states
  states=$(ps -o stat= --ppid "$job" 2>/dev/null) || return 1
  [ -n "$states" ] && ! grep -qv '^Z' <<<"$states"
}
watch_launcher() {
  local seconds=0 idle
  exec {idle}<> <(:)
  trap - TERM INT USR1 HUP
  while kill -0 "$job" 2>/dev/null; do
    read -r -t 1 -u "$idle" || true # no process that would outlive this one
    if has_only_zombies; then seconds=$((seconds + 1)); else seconds=0; fi
    if [ "$seconds" -ge "$zombie_seconds" ]; then
      say "all ranks have ended and $launcher does not: it is killed"
      kill -KILL "$job"
      return
    fi
  done
}
trap stop TERM INT USR1 HUP
kills_before=$(oom_kills "")
set -m
"${start[@]}" "$program" pretrain "${arguments[@]}" </dev/null &
job=$!
watch_launcher &
watcher=$!
wait_for "$job"
kill "$watcher" 2>/dev/null || true
wait "$watcher" 2>/dev/null || true

# A rank that takes more memory than there is would do so again.
if [ "$code" -eq 137 ] && [ "$signals" -eq 0 ] && [ "$(oom_kills "")" -gt "$kills_before" ]; then
  say "the kernel killed a rank, as memory ran out on this machine; 12 stands for that"
  code=12
fi

# Above 128: a rank was killed (128 + signal), or mpirun lost a machine (205, 255).
if [ "$code" -gt 128 ] && [ "$signals" -lt 2 ]; then
  say "the run ended with exit code $code: a rank was killed or a machine was lost; 75 stands for that"
  code=75
fi
exit "$code"
