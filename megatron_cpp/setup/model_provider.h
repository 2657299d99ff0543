// From the configuration to a model.
#pragma once
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// What a GPTModel of this configuration is built with. Another family of models would be provided here.
ModelContext model_provider(const Config& config, Session& session);
/// How its training is laid out over the session's ranks.
TrainingLayout layout_provider(const Config& config, Session& session);

Recompute recompute_of(const Config& config);
Fp8Layers fp8_layers(const Config& config);

}  // namespace mcpp
