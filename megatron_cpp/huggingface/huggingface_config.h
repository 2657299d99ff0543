// Conversion between Hugging Face's config.json and ModelConfig, for the model types of families.h.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "megatron_cpp/huggingface/families.h"
#include "megatron_cpp/huggingface/quantization.h"
#include "megatron_cpp/resume/special_tokens.h"
#include "model/config/config.h"
#include "tensor/dtype.h"

namespace mcpp {

// Special tokens that the files of a Hugging Face folder state: config.json, generation_config.json,
// tokenizer_config.json, special_tokens_map.json and chat_template.jinja.

/// Reads the special tokens of a folder as transformers does. `tokenizer` maps names to ids and may be nullptr. Ids of
/// at least `vocab_size` are kept for an export but not used otherwise. Throws BadInput, naming the file and the key,
/// for values of the wrong type.
SpecialTokens read_stated_tokens(const Path& folder, const Tokenizer* tokenizer, i64 vocab_size);

/// Returns the members of `file`, config.json or tokenizer_config.json, that an export writes back. Empty if none were
/// stated.
OrderedJson stated_members(const SpecialTokens& tokens, const char* file);

/// Returns the configuration keys whose values a family cannot express.
std::vector<std::string> unsupported_keys(ModelConfig model, const Family& family);
/// Returns the family of `model_type` or, if it is empty, the first family that can express `model`. Throws BadInput,
/// naming the keys that prevent the export, if there is none.
const Family& exporting_family(const ModelConfig& model, std::string_view model_type = "");
/// Returns true if exporting_family() returns a family for these arguments.
bool has_exporting_family(const ModelConfig& model, std::string_view model_type = "");
/// Returns the model or, if a family can express it only so, the model without multi-token prediction.
ModelConfig exportable_model(const ModelConfig& model, std::string_view model_type = "");

/// Returns the family of a config.json with the contents `text`. `source` names the file in messages. Throws BadInput
/// for an unknown type.
const Family& family_of_config(std::string_view text, const std::string& source);
/// Returns the model that config.json describes, with the unpadded vocab_size and the longest context as seq_length.
/// `prediction_layers` is the number of layers for multi-token prediction; std::nullopt = the number in config.json, or
/// 0 if the key is absent. Throws BadInput, naming the key, for unsupported values.
ModelConfig parse_huggingface_config(std::string_view text, const std::string& source,
                                     std::optional<i64> prediction_layers = {});

/// Returns the number of layers for multi-token prediction in config.json, or std::nullopt if the key is absent.
std::optional<i64> parse_prediction_layers(std::string_view text, const std::string& source);

/// Returns the quantization of the weights that config.json states. Throws BadInput, naming the key, for unsupported
/// quantizations.
Quantization parse_quantization(std::string_view text, const std::string& source);

/// Returns the contents of config.json for the model. `family` must be able to express the model. `dtype` is the type
/// of the weights. `quantization`, if not null, becomes 'quantization_config'.
std::string huggingface_config(const ModelConfig& model, const Family& family, DType dtype,
                               const SpecialTokens& tokens = {}, const OrderedJson& quantization = {});
/// Selects the first family that can express the model.
inline std::string huggingface_config(const ModelConfig& model, DType dtype, const SpecialTokens& tokens = {}) {
  return huggingface_config(model, exporting_family(model), dtype, tokens);
}

}  // namespace mcpp
