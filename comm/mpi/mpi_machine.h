// The machine that a rank runs on, and what it shares with the others there.
#pragma once
#include <vector>

namespace mcpp {

struct Machine {
  std::vector<int> ranks{0};  ///< of the world, that run on it, ascending
  int cores = 1;              ///< that these ranks may use together: launchers often bind each to its own

  /// One number for each machine.
  int node() const { return ranks.front(); }
  bool has_core_for_each_rank() const { return cores >= static_cast<int>(ranks.size()); }
};

/// Asks MPI. Called by all ranks of the world.
Machine find_machine();

}  // namespace mcpp
