// Conversion of a dense model to a mixture of experts that are initialized with its MLPs (Komatsuzaki et al., "Sparse
// Upcycling", 2023).
#pragma once
#include <memory>

#include "checkpoint/format/shard.h"
#include "checkpoint/load/reader.h"
#include "model/config/config.h"

namespace mcpp {

/// Returns the weights of `upcycled`, which must be the model of the checkpoint except for its experts. Every expert is
/// the MLP of its layer; routers are initialized randomly from name and seed. If the expert weights of a token add up
/// to 1, the model's outputs are unchanged. Holds one tensor in memory at a time. Throws BadInput if an MLP cannot
/// become an expert because the width differs or there is a shared expert. `device` and `dense` must outlive the
/// result.
std::unique_ptr<ShardSource> upcycle(CheckpointReader& dense, const ModelConfig& upcycled, u64 seed, Device& device);

}  // namespace mcpp
