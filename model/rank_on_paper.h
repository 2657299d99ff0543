// Model chunks of one rank of a training, on the meta device.
#pragma once
#include <functional>

#include "model/memory.h"
#include "model/on_paper.h"

namespace mcpp {

/// Calls f on each chunk of the rank given by `share`, without allocating its parameters.
void visit_rank_on_paper(const ModelConfig& config, const ActivationSetup& setup, const RankShare& share,
                         const std::function<void(GPTModel& chunk)>& f);

}  // namespace mcpp
