// A dense model becomes one with experts, each of which begins as the MLP that it comes from (Komatsuzaki et al.,
// "Sparse Upcycling", 2023).
#pragma once
#include <memory>

#include "checkpoint/format/shard.h"
#include "checkpoint/load/reader.h"
#include "model/config/config.h"

namespace mcpp {

/// The weights of `upcycled`, the model of the checkpoint but for its experts: every expert is the MLP of its layer,
/// and routers are drawn by name and seed, so that where weights of experts add up to 1 the model gives what it gave
/// before. One tensor in memory at a time. BadInput where an MLP cannot become an expert: with another width, or a
/// shared expert, which comes from nowhere. `device` and `dense` outlive the result.
std::unique_ptr<ShardSource> upcycle(CheckpointReader& dense, const ModelConfig& upcycled, u64 seed, Device& device);

}  // namespace mcpp
