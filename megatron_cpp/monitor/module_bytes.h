// What the modules of a training take of a rank's memory, as it is.
#pragma once
#include "megatron_cpp/logging/trace_file.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Bytes of parameters, gradients and optimizer state that this rank keeps of each module (model/module_memory.h) from
/// step to step, zero_stage being the training's. Of states that are in no tensor, on a disk or in a form of their own,
/// nothing is said. For between two steps.
BytesByModule kept_by_modules(const TrainingState& state, i64 zero_stage);

}  // namespace mcpp
