// The machine that a rank runs on, and what it shares with the others there.
#pragma once

namespace mcpp {

struct Machine {
  int node = 0;   ///< the lowest rank of the world that runs on it
  int ranks = 1;  ///< that run on it
  int index = 0;  ///< place of this rank among these
  int cores = 1;  ///< that these ranks may use together: launchers often bind each to its own

  bool has_core_for_each_rank() const { return cores >= ranks; }
};

/// Asks MPI. Called by all ranks of the world.
Machine find_machine();

}  // namespace mcpp
