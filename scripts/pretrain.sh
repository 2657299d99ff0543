#!/usr/bin/env bash
# Trains a configuration once on one or more ranks, on this host or several. scripts/launch.sh restarts failed runs.
#
#   scripts/pretrain.sh configs/quickstart_2_ranks.toml -n 2
#   scripts/pretrain.sh configs/llama_8b.toml -n 64 --hostfile hosts --parallel.tensor_model_parallel_size=8
#   sbatch --nodes=8 --ntasks-per-node=8 --wrap "scripts/pretrain.sh configs/llama_8b.toml --srun"  # or slurm_pretrain.sbatch
#
#   -n N             number of ranks (default 1; with --srun all tasks of the job)
#   --hostfile FILE  hosts, one "name slots=N" per line, as for mpirun; each needs this folder at the same path
#   --srun           start with Slurm's srun instead of mpirun
#
# All other arguments go to megatron_cpp pretrain. MEGATRON_CPP names a program other than build/release/megatron_cpp.
set -euo pipefail
# shellcheck source=scripts/lib/common.sh
source "$(dirname "$(readlink -f "$0")")/lib/common.sh"

parse_options "$@"
check_placement

if [ $launcher = srun ]; then
  start=(srun --mpi=pmix ${ranks:+--ntasks="$ranks"})
else
  # Ranks divide the cores of a host among themselves. Idle ranks yield, so there may be more ranks than cores.
  start=(mpirun -n "${ranks:-1}" --bind-to none)
  if [ -n "$hostfile" ]; then start+=(--hostfile "$hostfile"); else start+=(--oversubscribe); fi
  [ "$(id -u)" -ne 0 ] || start+=(--allow-run-as-root)
  # Detect an unreachable host after about 25 seconds. Open MPI's default of 8 minutes and ssh's unlimited wait are too
  # long. Variables that are already set take precedence.
  export OMPI_MCA_oob_tcp_keepalive_time=${OMPI_MCA_oob_tcp_keepalive_time:-10}
  export OMPI_MCA_oob_tcp_keepalive_intvl=${OMPI_MCA_oob_tcp_keepalive_intvl:-5}
  export OMPI_MCA_oob_tcp_keepalive_probes=${OMPI_MCA_oob_tcp_keepalive_probes:-3}
  [ -n "${OMPI_MCA_plm_rsh_agent:-}" ] || export OMPI_MCA_plm_rsh_args=${OMPI_MCA_plm_rsh_args:--o BatchMode=yes -o \
ConnectTimeout=10 -o ServerAliveInterval=10 -o ServerAliveCountMax=3}
fi

# The program sets this variable itself if it is unset, but then has to start again (megatron_cpp/main.cpp).
[ -n "${OMP_WAIT_POLICY:-}" ] || export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-10000}

# If this script is killed, the kernel terminates the launcher, which terminates its ranks.
if setpriv --pdeathsig TERM true 2>/dev/null; then start=(setpriv --pdeathsig TERM "${start[@]}"); fi

# On SIGTERM and Ctrl-C mpirun terminates its ranks before they can save, but it forwards SIGUSR1. In its own process
# group it does not receive the terminal's Ctrl-C. A second signal terminates the run without saving. A third kills a
# launcher that does not exit because it waits for a lost host.
job="" signals=0
# shellcheck disable=SC2317 # called by the trap
interrupt_twice() { { kill -INT "$job" && sleep 0.2 && kill -INT "$job"; } || true; } # two SIGINTs terminate srun
# shellcheck disable=SC2317 # called by the trap
stop() {
  [ -n "$job" ] || exit 143
  signals=$((signals + 1))
  case $signals in
    1) kill -USR1 "$job" || true ;; # it may have exited already
    2) if [ "$launcher" = srun ]; then interrupt_twice; else kill -TERM "$job" || true; fi ;;
    *)
      pkill -KILL -P "$job" || true
      kill -KILL "$job" || true
      ;;
  esac
}
# A launcher may miss the exit of its ranks and never return. In that case all of its children are zombies.
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
    read -r -t 1 -u "$idle" || true # unlike sleep, not a process that could outlive this one
    if has_only_zombies; then seconds=$((seconds + 1)); else seconds=0; fi
    if [ "$seconds" -ge "$zombie_seconds" ]; then
      log_message "all ranks have exited but $launcher has not: killing it"
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
disown "$watcher" # so that bash does not report its end
wait_for "$job"
kill "$watcher" 2>/dev/null || true

# Out of memory is not restartable: it would happen again.
if [ "$code" -eq 137 ] && [ "$signals" -eq 0 ] && [ "$(oom_kills "")" -gt "$kills_before" ]; then
  log_message "the kernel killed a rank because this host ran out of memory; reporting exit code 12"
  code=12
fi

# Codes above 128: a rank was killed (128 + signal), or mpirun lost a host (205, 255).
if [ "$code" -gt 128 ] && [ "$signals" -lt 2 ]; then
  log_message "exit code $code: a rank was killed or a host was lost; reporting exit code 75"
  code=75
fi
exit "$code"
