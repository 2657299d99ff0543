// Helpers shared by the tests over MPI.
#pragma once
#include "comm/mpi/mpi.h"
#include "tensor/device.h"

namespace mcpp::test {

/// Returns the session of this process.
const MpiSession& session();

/// Prevents other processes from mapping the arena of the device, as if they were in a different container.
void hide_arena(const CpuDevice& device);

}  // namespace mcpp::test
