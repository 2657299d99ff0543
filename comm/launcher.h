// World size announced by the launcher. The check detects a batch job without srun or mpirun, whose processes would
// each form a world of size 1 and train the same run in one directory.
#pragma once
#include <functional>
#include <string>

#include "base/types.h"

namespace mcpp {

struct Launcher {
  int ranks = 1;         ///< maximum over the variables
  std::string variable;  ///< name of that variable; empty without a launcher
  int node_ranks = 0;    ///< ranks on this node; 0 = unknown

  /// Throws BadInput if MPI found fewer ranks than announced.
  void check(int mpi_size) const;
};

/// Reads OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_NTASKS and WORLD_SIZE, and for the ranks of the node
/// OMPI_COMM_WORLD_LOCAL_SIZE and MPI_LOCALNRANKS. `variable` is std::getenv in main; null means
/// unset.
Launcher read_launcher(const std::function<const char*(const char*)>& variable);

/// Returns the timer slack in nanoseconds for ranks that sleep between checks for other ranks, as in MPI_Init: 0.1 ms,
/// the time between two checks, per rank that shares the core, at most 20 ms. Returns 0, the system's default, if ranks
/// have cores of their own or the number of ranks is unknown.
u64 timer_slack_ns(int node_ranks, int cores);

/// Returns true if standard output is shown on a terminal. mpirun always connects its ranks to a pseudo-terminal, so
/// the function checks the nearest ancestor process with a different standard output.
bool is_output_terminal();

/// Slurm job of this process.
struct SlurmJob {
  std::string name;  ///< "job 77 of cluster x"; empty outside of Slurm
  i64 requeued = 0;  ///< number of times that Slurm has requeued it
};

/// Reads SLURM_JOB_ID, SLURM_CLUSTER_NAME and SLURM_RESTART_COUNT.
SlurmJob read_slurm_job(const std::function<const char*(const char*)>& variable);

}  // namespace mcpp
