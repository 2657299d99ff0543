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

  /// Throws BadInput if MPI found fewer ranks than announced.
  void check(int mpi_size) const;
};

/// Reads OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_NTASKS and WORLD_SIZE. `variable` is std::getenv in main; null means
/// unset.
Launcher read_launcher(const std::function<const char*(const char*)>& variable);

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
