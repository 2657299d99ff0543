// Model chunks of one rank of a training, on the meta device.
#pragma once
#include <functional>

#include "model/memory.h"
#include "model/meta_model.h"

namespace mcpp {

/// Calls f on each chunk of the rank given by `share`, without allocating its parameters.
void visit_rank_meta_model(const ModelConfig& config, const ActivationSetup& setup, const RankMemorySpec& share,
                           const std::function<void(GPTModel& chunk)>& f);

}  // namespace mcpp
