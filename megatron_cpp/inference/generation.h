// Text from a model, token by token.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "data/dataset/documents.h"
#include "megatron_cpp/inference/sampling.h"
#include "model/gpt_model.h"
#include "parallel/state.h"

namespace mcpp {

struct GenerationLimits {
  i64 max_new_tokens = 256;           ///< of each text
  std::vector<i32> stop_tokens = {};  ///< each ends a text and is not delivered
  DocumentRules documents = {};       ///< of the model's training
};

/// A text to continue: at least one token, and how those that follow are drawn.
struct TextStart {
  std::vector<i32> prompt;
  SamplingOptions sampling;
};

/// Hears of each new token as soon as it is known: of which text, and -1 after its last one.
using TokenListener = std::function<void(std::size_t text, i32 token)>;

/// Continues the texts side by side, on all ranks of `parallel` together, which get the same tokens; those that would
/// read different samples in training all read these. All stand at the same position: where the shortest prompt ends
/// the others go on with the tokens that they have. So a text is what it would be alone, but for the rounding of
/// products with other numbers of rows. Keys and values are cached; when the context is full, the later half of it is
/// read anew and kept.
void generate(GPTModel& stage, ParallelState& parallel, std::vector<TextStart> texts, const GenerationLimits& limits,
              const TokenListener& deliver);

}  // namespace mcpp
