// Sampling of the next token from logits.
#pragma once
#include <span>

#include "base/fields.h"

namespace mcpp {

struct SamplingOptions {
  double temperature = 0.8;
  i64 top_k = 0;
  double top_p = 1;
  i64 seed = 1234;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("temperature", self.temperature, "divisor of the logits; 0 = always the most likely token", at_least(0));
    visit("top_k", self.top_k, "sample from the k most likely tokens; 0 = all", at_least(0));
    visit("top_p", self.top_p, "sample from the most likely tokens with this total probability (nucleus sampling)",
          Constraint{.min = 0, .max = 1, .min_is_excluded = true});
    visit("seed", self.seed, "random seed; the same seed generates the same text", at_least(0));
  }
};

/// Samples a token from softmax(logits / temperature), restricted to top_k and top_p (nucleus sampling, Holtzman et
/// al., "The Curious Case of Neural Text Degeneration", 2020). `draw` numbers the draws of one seed. Deterministic;
/// ties go to the lower token.
i32 sample_token(std::span<const float> logits, const SamplingOptions& options, u64 draw);

}  // namespace mcpp
