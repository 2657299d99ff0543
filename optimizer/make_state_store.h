// Factory for the configured store of optimizer states.
#pragma once
#include "nn/offload/state_store.h"
#include "optimizer/config.h"

namespace mcpp {

/// Returns the store for weights on `device`. `supports_snapshots` allows asynchronous saves.
std::unique_ptr<StateStore> make_state_store(const OptimizerConfig& config, Device& device, bool supports_snapshots);

}  // namespace mcpp
