// Text sample from the model in training, generated at each evaluation.
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

/// Continues logging.sample_prompt with tokens sampled as `generate` does, with a fixed random seed.
/// The text depends on the weights alone, whatever the layout, except where a random draw falls within rounding error
/// of two tokens. Training does not depend on it. Each token costs the forward pass of a whole sample, since keys and
/// values are not cached.
class TextSampler {
 public:
  /// Reads the tokenizer if there is a prompt. Samples begin and end as `special_tokens` state.
  TextSampler(StoredRef<Config> config, const SpecialTokens& special_tokens, Session& session);

  bool is_on() const { return tokenizer_.has_value(); }
  /// Returns the continuation of the prompt, or std::nullopt if `signal`, this rank's stop signal, is nonzero on any
  /// rank. Collective; the result is identical on all ranks.
  std::optional<std::string> next(TrainingState& state, const std::function<int()>& signal) const;

 private:
  MicroBatch sample_of(std::span<const i32> ids) const;

  const Config& config_;
  Session& session_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<i32> prompt_, stop_tokens_;
};

}  // namespace mcpp
