// Construction of a model from the configuration.
#pragma once
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Returns the context for building a GPTModel. Other model families would be added here.
ModelContext model_provider(const Config& config, Session& session);
/// Returns where training stores the data that the layout of the session offloads.
TrainingStorage storage_provider(const Config& config, const Session& session);

Fp8Layers fp8_layers(const Config& config);

}  // namespace mcpp
