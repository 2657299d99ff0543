// Forward passes through the stages of a pipeline, of which each rank holds one, with nothing kept for backward.
#pragma once
#include <functional>

#include "model/gpt_model.h"
#include "parallel/state.h"

namespace mcpp {

/// What goes through. The ranks of one pipeline agree on the sizes.
struct ForwardTask {
  int microbatches = 1;
  i64 seq = 0, batch = 0;             ///< of every microbatch, on this rank
  std::function<Tensor(int)> tokens;  ///< of a microbatch, int32 [seq, batch]; the first stage asks for them
  /// Called with each microbatch and its pass before the forward, when given.
  std::function<void(int microbatch, MicrobatchContext& pass)> prepare = {};
  /// Called by the stage with the output, with a microbatch's hidden states (tokens, where it is the first one, too),
  /// that model.loss() or model.logits() goes on from.
  std::function<void(int microbatch, const Tensor& input, MicrobatchContext& pass)> output;
};

/// Runs `stage`, this rank's. Called by all ranks of the pipeline.
void run_forward(GPTModel& stage, const ParallelState& parallel, const ForwardTask& task);

}  // namespace mcpp
