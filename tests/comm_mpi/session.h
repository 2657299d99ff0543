// What the tests over MPI share.
#pragma once
#include "comm/mpi/mpi.h"
#include "tensor/device.h"

namespace mcpp::test {

/// Of this process.
const MpiSession& session();

/// Lets no other process map the arena of the device, as if they were in another container.
void hide_arena(const CpuDevice& device);

}  // namespace mcpp::test
