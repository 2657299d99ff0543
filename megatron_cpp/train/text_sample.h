// A sample of text from the model that is being trained, as it is at an evaluation.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/resume/special_tokens.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Continues logging.sample_prompt with tokens that are drawn as `generate` draws them, always by the same random
/// numbers, from logits of the same passes as an evaluation: so the text depends on the weights alone, at any layout
/// (but where a draw falls as close to another token as sums in another order differ), and nothing of the training
/// depends on it. Each token costs the forward pass of a sample, as nothing is cached.
class TextSampler {
 public:
  /// Reads the tokenizer when there is a prompt. The configuration and the session outlive this.
  TextSampler(StoredRef<Config> config, const SpecialTokens& special_tokens, Session& session);

  bool is_on() const { return tokenizer_.has_value(); }
  /// What follows the prompt; nothing once a signal, which `signal` tells of this rank's, asks any rank to stop. Called
  /// by all ranks, which get the same.
  std::optional<std::string> next(TrainingState& state, const std::function<int()>& signal) const;

 private:
  MicroBatch sample_of(std::span<const i32> ids) const;

  const Config& config_;
  Session& session_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<i32> prompt_, stop_tokens_;
};

}  // namespace mcpp
