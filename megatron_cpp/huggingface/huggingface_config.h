// Hugging Face's config.json and our ModelConfig, for the model types of families.h.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "megatron_cpp/huggingface/families.h"
#include "megatron_cpp/resume/special_tokens.h"
#include "model/config/config.h"
#include "tensor/dtype.h"

namespace mcpp {

/// The first family that can express `model`, or that of the model type that is named. Throws BadInput, naming the keys
/// that stand in the way, when none can.
const Family& exporting_family(const ModelConfig& model, std::string_view model_type = "");

/// That of config.json (its text); `source` is how messages call it. Throws BadInput for a type that is not known.
const Family& family_of_config(std::string_view text, const std::string& source);
/// The model that config.json describes. vocab_size is the real one; seq_length is the longest context. Throws
/// BadInput, naming the key, for values that our model cannot express.
ModelConfig parse_huggingface_config(std::string_view text, const std::string& source);

/// config.json as transformers reads it, of a family that can express the model. `dtype` is the type of the weights.
std::string huggingface_config(const ModelConfig& model, const Family& family, DType dtype,
                               const SpecialTokens& tokens = {});
/// Of the first family that can.
inline std::string huggingface_config(const ModelConfig& model, DType dtype, const SpecialTokens& tokens = {}) {
  return huggingface_config(model, exporting_family(model), dtype, tokens);
}

}  // namespace mcpp
