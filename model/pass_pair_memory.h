// Activation memory of a forward and a backward pass that run together (PassInterleaver).
#pragma once
#include "model/memory.h"

namespace mcpp {

/// Returns the peak bytes of activations while a forward pass of chunk `forward` and a backward pass of chunk
/// `backward` of the rank given by `share` run together. Excludes the activations that were saved before.
/// `delays_wgrad` states that the backward pass delays its weight gradients. Runs both passes on the meta device.
i64 pass_pair_bytes(const ModelConfig& config, const ActivationSetup& setup, const RankMemorySpec& share, int forward,
                    int backward, bool delays_wgrad);

}  // namespace mcpp
