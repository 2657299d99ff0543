// MPI's own collectives behind the interface of a group: what ours are measured against.
#pragma once
#include <memory>

#include "comm/communicator.h"

namespace mcpp {

/// All ranks of an MPI session. Every operation is one blocking call of MPI on the tensors as they are: sums are fp32,
/// in MPI's order; a send may wait for its receive, and tensors have at most 2^31 - 1 bytes.
std::unique_ptr<Communicator> make_mpi_baseline();

}  // namespace mcpp
