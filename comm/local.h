// Ranks as threads of one process, for testing multi-rank code under sanitizers and debuggers.
#pragma once
#include <functional>

#include "comm/communicator.h"

namespace mcpp {

/// Calls f(world, rank) on `n` threads and returns when all have finished. If a rank throws, the other ranks are
/// stopped in their current or next operation, and the first exception is rethrown to the caller.
///
/// Operations are asynchronous: the last rank to arrive executes the collective. Mismatched calls (operation, size or
/// dtype) throw an error that names both ranks. Waiting threads sleep.
void run_local_ranks(int n, const std::function<void(Communicator& world, int rank)>& f);

}  // namespace mcpp
