// Held-out perplexity: every token of a text scored once, each with as much context as the model and the stride allow.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "model/gpt_model.h"

namespace mcpp {

/// One forward pass over tokens [begin, begin + length), of which the predictions of the last `scored` are counted.
struct EvaluationWindow {
  i64 begin = 0, length = 0, scored = 0;
};

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

/// Scores `tokens`, of which the first is context only. The sum is in fp64 in token order, for any micro_batch_size the
/// same tokens with the same contexts. `progress(done, all)` is called after each batch.
Perplexity evaluate_tokens(GPTModel& model, std::span<const i32> tokens, i64 stride, i64 micro_batch_size,
                           const std::function<void(i64, i64)>& progress);

}  // namespace mcpp
