// Memory requirements of scoring and generation, checked before the first pass.
#pragma once
#include "model/gpt_model.h"
#include "parallel/state.h"

namespace mcpp {

/// Returns the bytes that this rank needs at least for passes over `batch` windows of `seq` tokens: its weights, and
/// the larger of the tensors of one layer and the logits. Nothing is saved for backward.
double scoring_bytes(GPTModel& stage, i64 seq, i64 batch);

/// Throws OutOfMemory on all ranks, naming --micro_batch_size, if there is not enough memory. Call it before the first
/// pass, since the system would otherwise kill the process without a message. Collective.
void check_scoring_memory(GPTModel& stage, ParallelState& parallel, i64 seq, i64 batch);

/// Returns the bytes that this rank needs at least to continue `batch` texts side by side: for its weights, for the
/// keys and values of all positions of the context, and for one row of logits for each text.
double generation_bytes(GPTModel& stage, i64 batch);

/// Throws OutOfMemory on all ranks, naming --batch_size, if there is not enough memory. Call it before the first pass.
/// Collective.
void check_generation_memory(GPTModel& stage, ParallelState& parallel, i64 batch);

}  // namespace mcpp
