// Memory of passes that are recorded in graphs of the device.
#pragma once
#include "model/memory.h"

namespace mcpp {

/// Returns the bytes of the arena of recorded passes of a full model on one rank: of all activations and intermediate
/// results of forward and backward of a microbatch, without the workspaces of kernels. Larger than the peak of
/// activations, because the arena reuses blocks only for tensors of the same size.
i64 recorded_pass_bytes(const ModelConfig& config, const ActivationSetup& setup);

}  // namespace mcpp
