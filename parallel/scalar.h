// One number reduced over a group, for losses, norms and counts.
#pragma once
#include "comm/communicator.h"

namespace mcpp {

/// The sum (or maximum) of every rank's value, the same bits on all of them. fp64. Called by all ranks of the group.
double reduce_scalar(double value, ReduceOp op, Communicator& group, Device& device);

}  // namespace mcpp
