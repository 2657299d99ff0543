// How many ranks the launcher of this process promised. A batch job that forgets srun or mpirun starts every process as
// a world of its own, and all would train the same run into one folder; this is how that is noticed.
#pragma once
#include <functional>
#include <string>

#include "base/types.h"

namespace mcpp {

struct Launcher {
  int ranks = 1;         ///< the most that any variable promises
  std::string variable;  ///< its name; empty when there is no launcher

  /// Throws BadInput when MPI found fewer ranks than promised.
  void check(int mpi_size) const;
};

/// Reads OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_NTASKS and WORLD_SIZE. `variable` is std::getenv in main; null = unset.
Launcher read_launcher(const std::function<const char*(const char*)>& variable);

/// Whether what this process writes on standard output comes to a terminal, and not to a file. mpirun gives its ranks a
/// terminal of its own in either case; so that of the next process above which has another standard output decides.
bool output_ends_in_terminal();

/// The Slurm job that this process belongs to.
struct SlurmJob {
  std::string name;  ///< "job 77 of cluster x"; empty outside of Slurm
  i64 requeued = 0;  ///< how often Slurm has queued it again
};

/// Reads SLURM_JOB_ID, SLURM_CLUSTER_NAME and SLURM_RESTART_COUNT, which Slurm sets.
SlurmJob read_slurm_job(const std::function<const char*(const char*)>& variable);

}  // namespace mcpp
