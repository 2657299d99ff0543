// Memory use of the modules of a model on one rank, as measured.
#pragma once
#include "megatron_cpp/logging/trace_file.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Returns the bytes of parameters, gradients and optimizer state that this rank keeps for each module
/// (model/module_memory.h) between steps. `zero_stage` is that of the training. Excludes states that are not in
/// tensors: those on disk or in an encoded form. Call it between steps.
BytesByModule module_memory_usage(const TrainingState& state, i64 zero_stage);

}  // namespace mcpp
