// Construction of a model from the configuration.
#pragma once
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Returns the context to build a GPTModel with. Other model families would be provided here.
ModelContext model_provider(const Config& config, Session& session);
/// Returns how the training is distributed over the session's ranks.
TrainingLayout layout_provider(const Config& config, Session& session);

Recompute make_recompute(const Config& config);
Fp8Layers fp8_layers(const Config& config);

}  // namespace mcpp
