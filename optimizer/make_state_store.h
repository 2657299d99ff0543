// Where a training keeps its optimizer's states, as configured.
#pragma once
#include "nn/offload/state_store.h"
#include "optimizer/config.h"

namespace mcpp {

/// For weights on `device`, which outlives it. `takes_snapshots`: saves will be written beside the training.
std::unique_ptr<StateStore> make_state_store(const OptimizerConfig& config, Device& device, bool takes_snapshots);

}  // namespace mcpp
