// Reduction of one scalar over a group, for losses, norms and counts.
#pragma once
#include "comm/communicator.h"

namespace mcpp {

/// Returns the sum or maximum of every rank's value in fp64, bitwise identical on all ranks. Collective.
double reduce_scalar(double value, ReduceOp op, Communicator& group, Device& device);

}  // namespace mcpp
