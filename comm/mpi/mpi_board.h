// Factory for the status board of a node.
#pragma once
#include <memory>

#include "comm/watchdog/status_board.h"

namespace mcpp {

/// Creates a status board in POSIX shared memory, which needs no MPI after construction. Returns a board of this rank
/// alone if not all ranks of the node can map it. Collective over the world.
std::unique_ptr<StatusBoard> make_status_board();

}  // namespace mcpp
