// Text from a model, token by token.
#pragma once
#include <functional>
#include <vector>

#include "megatron_cpp/inference/sampling.h"
#include "model/gpt_model.h"
#include "parallel/state.h"

namespace mcpp {

struct GenerationLimits {
  i64 max_new_tokens = 256;
  i32 stop_token = -1;  ///< ends the text and is not delivered; -1 = none
};

/// Continues `prompt` (at least one token) on all ranks of `parallel` together, which get the same tokens; calls
/// `deliver` with each new token as soon as it is known; `deliver` returns false to stop. Keys and values are cached;
/// when the context is full, the later half of it is read anew and kept.
void generate(GPTModel& stage, ParallelState& parallel, std::vector<i32> prompt, const SamplingOptions& sampling,
              const GenerationLimits& limits, const std::function<bool(i32)>& deliver);

}  // namespace mcpp
