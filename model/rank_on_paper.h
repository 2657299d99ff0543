// The model as one rank of a training holds it, on paper.
#pragma once
#include <functional>

#include "model/memory.h"
#include "model/on_paper.h"

namespace mcpp {

/// Calls f on each chunk of the rank that `share` says, as it is laid out there, without memory for its numbers.
void visit_rank_on_paper(const ModelConfig& config, const ActivationSetup& setup, const RankShare& share,
                         const std::function<void(GPTModel& chunk)>& f);

}  // namespace mcpp
