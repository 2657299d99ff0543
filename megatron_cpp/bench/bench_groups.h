// Benchmark of the creation of a layout's process groups, whose cost grows with the number of ranks.
#pragma once
#include <string>

#include "parallel/state.h"

namespace mcpp {

/// Costs of group creation; each is the maximum over ranks.
struct GroupCosts {
  int ranks = 0;           ///< size of the world
  i64 groups = 0;          ///< groups of two or more ranks that the rank belongs to
  i64 members = 0;         ///< total size of these groups; each keeps a list of its ranks
  double make_s = 0;       ///< time until all ranks have created their groups
  double first_use_s = 0;  ///< time of a one-element sum in each group that is used for sums
  i64 own_bytes = 0;       ///< growth of the process's private memory; 0 if unknown
};

/// Runs the benchmark. Collective over `world`; all ranks return the same result.
GroupCosts bench_groups(Communicator& world, const Layout& layout);

}  // namespace mcpp
