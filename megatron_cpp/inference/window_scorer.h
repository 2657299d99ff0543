// Windows of tokens through a model, on all ranks: how likely it finds the tokens that count.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "data/dataset/documents.h"
#include "model/gpt_model.h"
#include "parallel/state.h"

namespace mcpp {

/// One forward pass over tokens [begin, begin + length), of which the predictions of the last `scored` are counted.
struct EvaluationWindow {
  i64 begin = 0, length = 0, scored = 0;
};

/// By token of the text.
struct TokenScores {
  std::vector<double> nll;         ///< -ln p; 0 for tokens that no window scores
  std::vector<bool> is_likeliest;  ///< whether no token is likelier, nor as likely with a lower id; false as above
};

struct ScoringOptions {
  i64 micro_batch_size = 1;      ///< windows in one pass
  bool finds_likeliest = false;  ///< otherwise is_likeliest stays empty
  DocumentRules documents = {};  ///< of the model's training; every token is scored, whatever they say of the loss
  /// Called with numbers of windows now and then.
  std::function<void(i64 done, i64 all)> progress = [](i64, i64) {};
};

/// Batches that the ranks score before they make room for others: a pipeline stays full over several, of which each has
/// its activations in memory; so not over all at once.
i64 batches_in_a_round(const ParallelState& parallel);

/// Data-parallel ranks take windows in turn. Called with the same on every rank of `parallel`, which get the same
/// result. No token is scored by two windows. Windows side by side are as long as the longest of them: windows of like
/// lengths, one after another, waste least. Throws OutOfMemory where so many side by side do not fit.
TokenScores score_windows(GPTModel& stage, ParallelState& parallel, std::span<const i32> tokens,
                          std::span<const EvaluationWindow> windows, const ScoringOptions& options);

}  // namespace mcpp
