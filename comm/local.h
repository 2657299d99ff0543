// Ranks as threads of one process: for tests of everything that runs on several ranks, under sanitizers and debuggers.
#pragma once
#include <functional>

#include "comm/communicator.h"

namespace mcpp {

/// Calls f(world, rank) on n threads and returns when all have ended. The first exception that a rank throws ends the
/// others at their next, or present, operation, and is thrown again here.
///
/// Operations are truly asynchronous: a collective is carried out by the rank that comes last. Calls that do not match
/// (another operation, size or type than a peer's) are errors that name both ranks. Threads that wait sleep.
void run_local_ranks(int n, const std::function<void(Communicator& world, int rank)>& f);

}  // namespace mcpp
