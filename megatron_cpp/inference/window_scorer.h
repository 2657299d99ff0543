// Scoring of token windows with a model on all ranks.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "data/dataset/batch.h"
#include "model/gpt_model.h"
#include "parallel/state.h"

namespace mcpp {

// Memory requirements of scoring and generation, checked before the first pass.

/// Size of the passes of an evaluation.
struct ScoringShape {
  i64 seq = 0, batch = 0;  ///< tokens of a window, and windows of a pass
  i64 scored = 0;          ///< predictions that a pass scores
};

/// Returns the minimum bytes that this rank needs for such passes: its weights, and the larger of the tensors of one
/// layer and the logits of the scored predictions. Nothing is saved for backward.
double scoring_bytes(GPTModel& stage, const ScoringShape& shape);

/// Throws OutOfMemory on all ranks, naming --micro_batch_size, if there is not enough memory. Call it before the first
/// pass, because otherwise the system kills the process without a message. Collective.
void check_scoring_memory(GPTModel& stage, ParallelState& parallel, const ScoringShape& shape);

/// Returns the minimum bytes that this rank needs to continue `batch` texts together: its weights, the keys and values
/// of all positions of the context, and one row of logits per text.
double generation_bytes(GPTModel& stage, i64 batch);

/// Throws OutOfMemory on all ranks, naming --batch_size, if there is not enough memory. Call it before the first pass.
/// Collective.
void check_generation_memory(GPTModel& stage, ParallelState& parallel, i64 batch);

/// Forward pass over tokens [begin, begin + length) that scores the last `scored` predictions.
struct EvaluationWindow {
  i64 begin = 0, length = 0, scored = 0;
};

/// Scores by token of the text.
struct TokenScores {
  std::vector<double> nll;           ///< -ln p of each token; 0 for tokens that no window scores
  std::vector<bool> is_most_likely;  ///< the token has the highest probability (ties: the lowest id); false for tokens
                                     ///< that no window scores
};

struct ScoringOptions {
  i64 micro_batch_size = 1;          ///< windows with different inputs in one pass
  bool compute_most_likely = false;  ///< if false, is_most_likely stays empty
  /// Rules that the model was trained with. Every token is scored, even those excluded from the loss.
  DocumentRules documents = {};
  /// Called regularly with the number of windows scored so far and the total.
  std::function<void(i64 done, i64 all)> progress = [](i64, i64) {};
};

/// Returns the number of batches that ranks score in one run of the schedule. More batches keep a pipeline busier, but
/// each batch in flight keeps its activations in memory, and all are padded to the longest window.
i64 batches_per_round(const ParallelState& parallel);

/// Scores windows. Data-parallel ranks score windows in turn. Collective over `parallel`; arguments and results are
/// identical on all ranks. Each token may be scored by at most one window. Windows in a batch are padded to the longest
/// one, so consecutive windows should have similar lengths. Consecutive windows that differ in their last token only
/// are computed once. Throws OutOfMemory if the batch does not fit.
TokenScores score_windows(GPTModel& stage, ParallelState& parallel, std::span<const i32> tokens,
                          std::span<const EvaluationWindow> windows, const ScoringOptions& options);

// Forward passes through the stages of a pipeline, one per rank, without saving activations for backward.

/// Inputs and callbacks of a forward run. Sizes are identical on all ranks of a pipeline.
struct ForwardTask {
  int microbatches = 1;
  i64 seq = 0, batch = 0;  ///< size of every microbatch on this rank
  /// Returns the tokens of a microbatch, int32 [seq, batch]. Called on the first stage.
  std::function<Tensor(int)> tokens;
  /// Called, if set, with each microbatch and its context before its forward pass.
  std::function<void(int microbatch, MicrobatchContext& context)> prepare = {};
  /// Called on the last stage with the hidden states of each microbatch (its tokens, if this is also the first stage),
  /// which are the input of model.loss() and model.logits().
  std::function<void(int microbatch, const Tensor& input, MicrobatchContext& context)> output;
};

/// Runs `stage`, which is the pipeline stage of this rank. Collective over the pipeline.
void run_forward(GPTModel& stage, const ParallelState& parallel, const ForwardTask& task);

}  // namespace mcpp
