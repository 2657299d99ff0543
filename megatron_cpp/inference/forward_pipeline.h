// Forward passes through the stages of a pipeline, one per rank, without saving activations for backward.
#pragma once
#include <functional>

#include "model/gpt_model.h"
#include "parallel/state.h"

namespace mcpp {

/// Inputs and callbacks of a forward run. All ranks of a pipeline use identical sizes.
struct ForwardTask {
  int microbatches = 1;
  i64 seq = 0, batch = 0;  ///< size of every microbatch on this rank
  /// Returns the tokens of a microbatch, int32 [seq, batch]. Called on the first stage.
  std::function<Tensor(int)> tokens;
  /// Called, if set, with each microbatch and its context before its forward pass.
  std::function<void(int microbatch, MicrobatchContext& context)> prepare = {};
  /// Called on the last stage with the hidden states of each microbatch (its tokens, if this is also the first stage),
  /// the input of model.loss() and model.logits().
  std::function<void(int microbatch, const Tensor& input, MicrobatchContext& context)> output;
};

/// Runs `stage`, the stage of this rank. Collective over the pipeline.
void run_forward(GPTModel& stage, const ParallelState& parallel, const ForwardTask& task);

}  // namespace mcpp
