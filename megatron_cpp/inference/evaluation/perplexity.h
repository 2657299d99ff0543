// Held-out perplexity: every token of a text scored once, each with as much context as the model and the stride allow.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "megatron_cpp/inference/window_scorer.h"

namespace mcpp {

/// Windows over `tokens` tokens, of which the first is context only: all others are scored exactly once. A window
/// predicts up to seq_length tokens and starts `stride` (1 .. seq_length) after the last.
std::vector<EvaluationWindow> evaluation_windows(i64 tokens, i64 seq_length, i64 stride);

struct Perplexity {
  double nll = 0;  ///< sum of -ln p over the scored tokens
  i64 tokens = 0;  ///< scored
  i64 words = 0;   ///< of the raw text, where it is known; else 0
  i64 bytes = 0;   ///< the same

  double loss() const { return nll / static_cast<double>(tokens); }
  double token_perplexity() const;
  double word_perplexity() const;
  double byte_perplexity() const;
  double bits_per_byte() const;
};

/// How evaluate_texts() goes through texts.
struct EvaluationOptions {
  i64 window = 1;                ///< tokens that a window predicts at most, from 1 to the model's seq_length
  i64 stride = 1;                ///< of evaluation_windows()
  i64 micro_batch_size = 1;      ///< windows in one pass; does not change the result
  DocumentRules documents = {};  ///< of the model's training
  i32 begin_token = -1;          ///< stands before documents and is never scored; -1 = none
  std::function<void(i64 done, i64 all)> progress = [](i64, i64) {};  ///< called with numbers of windows now and then
};

/// Scores each of `texts`, the tokens of one, of which the first is context only, on all ranks of `parallel` together:
/// data-parallel ranks take windows in turn, and those of short texts go side by side. Called with the same texts on
/// every rank, which get the same results; of Perplexity it fills in nll and tokens, of those that count. The sum of a
/// text is in fp64 in token order, whatever the micro-batch, the layout and the other texts are.
std::vector<Perplexity> evaluate_texts(GPTModel& stage, ParallelState& parallel,
                                       std::span<const std::span<const i32>> texts, const EvaluationOptions& options);

}  // namespace mcpp
