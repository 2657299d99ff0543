// Construction of a model from the configuration.
#pragma once
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Returns the context to build a GPTModel with. Other model families would be provided here.
ModelContext model_provider(const Config& config, Session& session);
/// Returns where the training offloads what the session's layout does not keep on the device.
TrainingStorage storage_provider(const Config& config, const Session& session);

Fp8Layers fp8_layers(const Config& config);

}  // namespace mcpp
