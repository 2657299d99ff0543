// MPI's own collectives behind the Communicator interface, as a benchmark baseline.
#pragma once
#include <memory>

#include "comm/communicator.h"

namespace mcpp {

/// Creates a group of all ranks of an MPI session. Every operation is one blocking MPI call on the tensors as they are:
/// sums are fp32 in MPI's order, a send may block on its receive, and tensors are limited to 2^31 - 1 bytes.
std::unique_ptr<Communicator> make_mpi_baseline();

}  // namespace mcpp
