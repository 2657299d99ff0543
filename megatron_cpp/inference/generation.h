// Autoregressive text generation.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "data/dataset/batch.h"
#include "megatron_cpp/inference/sampling.h"
#include "model/gpt_model.h"
#include "parallel/state.h"

namespace mcpp {

struct GenerationLimits {
  i64 max_new_tokens = 256;           ///< limit for each text
  std::vector<i32> stop_tokens = {};  ///< each ends a text and is not delivered
  DocumentRules documents = {};       ///< rules that the model was trained with
};

/// Text to continue: at least one token, and the options for sampling those that follow.
struct TextStart {
  std::vector<i32> prompt;
  SamplingOptions sampling;
};

/// Called with the index of a text and each new token as soon as it is known, and with -1 after the last one.
using TokenListener = std::function<void(std::size_t text, i32 token)>;

/// Continues several texts in one batch. Collective over `parallel`; all ranks get the same tokens, and data-parallel
/// ranks process the same texts. All texts advance at the same position: generation begins at the end of the shortest
/// prompt, and longer prompts supply their own tokens until they end. A text is therefore the same as if generated
/// alone, except for rounding in products with different numbers of rows. Keys and values are cached; when the context
/// is full, its second half is re-encoded and kept.
void generate(GPTModel& stage, ParallelState& parallel, std::vector<TextStart> texts, const GenerationLimits& limits,
              const TokenListener& deliver);

}  // namespace mcpp
