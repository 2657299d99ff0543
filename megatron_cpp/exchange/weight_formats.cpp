#include "megatron_cpp/exchange/weight_formats.h"

#include <algorithm>

namespace mcpp {

std::string_view name_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::Huggingface:
      return "Hugging Face";
    case WeightFormat::Torchtitan:
      return "torchtitan";
    case WeightFormat::Megatron:
      return "Megatron Core";
  }
  return "";
}

WeightFormat detect_format(const TensorFiles& files) {
  const auto has_prefix = [&](std::string_view prefix) {
    return std::ranges::any_of(files.tensors(), [&](const FileTensor& x) { return x.name.starts_with(prefix); });
  };
  if (has_prefix("tok_embeddings.")) return WeightFormat::Torchtitan;
  if (has_prefix("decoder.layers.") || has_prefix("embedding.word_embeddings.")) return WeightFormat::Megatron;
  return WeightFormat::Huggingface;
}

WeightNames torchtitan_names() {
  return {
      .base = "",
      .layers = "layers.",
      .output = "output",
      .counterparts = {
          {"embedding.word_embeddings", WeightConversion::Padded, {"tok_embeddings"}},
          {"input_layernorm", WeightConversion::AsIs, {"attention_norm"}},
          {"self_attention.linear_qkv", WeightConversion::QkvPairs, {"attention.wq", "attention.wk", "attention.wv"}},
          {"self_attention.linear_proj", WeightConversion::AsIs, {"attention.wo"}},
          {"pre_mlp_layernorm", WeightConversion::AsIs, {"ffn_norm"}},
          {"mlp.linear_fc1", WeightConversion::Stacked, {"feed_forward.w1", "feed_forward.w3"}},
          {"mlp.linear_fc2", WeightConversion::AsIs, {"feed_forward.w2"}},
          {"decoder.final_layernorm", WeightConversion::AsIs, {"norm"}},
          {"output_layer", WeightConversion::Padded, {}},
      }};
}

WeightNames megatron_names(const ModelConfig& model) {
  WeightNames names{.base = "", .layers = "decoder.layers.", .output = "output_layer", .counterparts = {}};
  for (const char* name :
       {"embedding.position_embeddings", "input_layernorm", "self_attention.q_layernorm", "self_attention.k_layernorm",
        "self_attention.linear_proj", "pre_mlp_layernorm", "mlp.linear_fc2", "decoder.final_layernorm"})
    names.counterparts.push_back({name, WeightConversion::AsIs, {name}});
  names.counterparts.push_back({"embedding.word_embeddings", WeightConversion::Padded, {"embedding.word_embeddings"}});
  names.counterparts.push_back({"self_attention.linear_qkv", WeightConversion::Flat, {"self_attention.linear_qkv"}});
  names.counterparts.push_back(
      {"mlp.linear_fc1", model.is_gated() ? WeightConversion::Flat : WeightConversion::AsIs, {"mlp.linear_fc1"}});
  names.counterparts.push_back({"output_layer", WeightConversion::Padded, {}});
  return names;
}

}  // namespace mcpp
