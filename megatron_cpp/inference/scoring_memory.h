// What passes over windows side by side take of a machine's memory.
#pragma once
#include "model/gpt_model.h"
#include "parallel/state.h"

namespace mcpp {

/// Bytes that this rank needs at least for windows of `seq` tokens, `batch` of them in one pass: of its weights, and of
/// the larger of a layer's tensors and the logits. Of a pass nothing is kept for backward.
double scoring_bytes(GPTModel& stage, i64 seq, i64 batch);

/// Throws OutOfMemory on all ranks where there is not as much, naming --micro_batch_size. Called by all, before the
/// first pass: where there is too little the system ends a process without a word.
void check_scoring_memory(GPTModel& stage, ParallelState& parallel, i64 seq, i64 batch);

/// Returns the bytes that this rank needs at least to continue `batch` texts side by side: for its weights, for the
/// keys and values of all positions of the context, and for one row of logits for each text.
double generation_bytes(GPTModel& stage, i64 batch);

/// Throws OutOfMemory on all ranks where there is not as much, naming --batch_size. Called by all, before the first
/// pass.
void check_generation_memory(GPTModel& stage, ParallelState& parallel, i64 batch);

}  // namespace mcpp
