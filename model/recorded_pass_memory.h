// Memory of passes that are recorded in device graphs.
#pragma once
#include "model/memory.h"

namespace mcpp {

/// Returns the size in bytes of the arena of recorded passes of a full model on one rank. The arena holds all
/// activations and intermediate results of forward and backward of a microbatch, and those of evaluations that have
/// other sizes, because experts have no capacity in them; the workspaces of kernels are not counted. It is larger than
/// the peak of activations, because it reuses blocks only for tensors of the same size.
i64 recorded_pass_bytes(const ModelConfig& config, const ActivationSetup& setup);

}  // namespace mcpp
