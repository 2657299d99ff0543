// What it takes to make the groups of a layout, which grows with the number of ranks.
#pragma once
#include <string>

#include "parallel/state.h"

namespace mcpp {

/// Of the rank where it is most.
struct GroupFigures {
  int ranks = 0;           ///< of the world
  i64 groups = 0;          ///< that it works in with others
  i64 members = 0;         ///< of all these together: each group keeps lists of its ranks
  double make_s = 0;       ///< until all have their groups
  double first_use_s = 0;  ///< of a sum over one number in each group that sums
  i64 own_bytes = 0;       ///< of memory that the process alone has, more than before; 0 where that cannot be told
};

/// Called by all ranks of `world`, which get the same.
GroupFigures bench_groups(Communicator& world, const ParallelSizes& sizes);

}  // namespace mcpp
