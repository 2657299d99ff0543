// Hugging Face's config.json and our ModelConfig, for the model types gpt2 and llama, and those that are llama with
// sliding windows (mistral: in every layer, ministral: in some), with biases of queries, keys and values (qwen2), or
// with experts (mixtral, which is mistral else, and qwen2_moe).
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "model/config/config.h"
#include "tensor/dtype.h"

namespace mcpp {

enum class HuggingfaceFamily : u8 { Gpt2, Llama, Mistral, Ministral, Qwen2, Mixtral, Qwen2Moe };

constexpr bool is_of_qwen2(HuggingfaceFamily family) {
  return family == HuggingfaceFamily::Qwen2 || family == HuggingfaceFamily::Qwen2Moe;
}

/// The family that can express `model`. Throws BadInput, naming the keys that stand in the way, when none can.
HuggingfaceFamily huggingface_family(const ModelConfig& model);

/// The model that config.json (its text) describes; `source` is how messages call it. vocab_size is the real one;
/// seq_length is the longest context. Throws BadInput, naming the key, for values that our model cannot express.
ModelConfig parse_huggingface_config(std::string_view text, const std::string& source);

/// Special tokens, for generation with transformers.
struct SpecialTokens {
  std::optional<i64> bos;
  std::optional<i64> eos;
};

/// config.json as transformers reads it. `dtype` is the type of the weights.
std::string huggingface_config(const ModelConfig& model, DType dtype, const SpecialTokens& tokens = {});

}  // namespace mcpp
