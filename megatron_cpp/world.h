// The ranks that one command runs on.
#pragma once
#include "comm/communicator.h"

namespace mcpp {

struct World {
  Communicator& ranks;
  int rank_on_node = 0;    ///< place of this rank among those of its machine
  int cores_per_rank = 0;  ///< of its machine, that a rank may count on; 0 = all that the process may use
};

}  // namespace mcpp
