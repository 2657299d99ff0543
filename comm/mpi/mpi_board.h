// The status board of the ranks of a machine.
#pragma once
#include <memory>

#include "comm/watch/status_board.h"

namespace mcpp {

/// In memory of the system's own, which needs no MPI any more once it is there. A board of this rank alone where the
/// ranks of the machine cannot all map it. Called by all ranks of the world.
std::unique_ptr<StatusBoard> make_status_board();

}  // namespace mcpp
