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

namespace {

/// Adds the projections of MLPs and experts. Megatron Core's singleton_local_shards separates experts, and gates from
/// up projections.
void add_feed_forward(WeightNames& names, const ModelConfig& model, const TensorFiles& files) {
  const auto has = [&](std::string_view part) {
    return std::ranges::any_of(files.tensors(),
                               [&](const FileTensor& tensor) { return tensor.name.find(part) != std::string::npos; });
  };
  const bool are_gates_separate = has(".linear_fc1.gate."), are_experts_separate = has(".experts.experts.0.");
  const WeightConversion fused = model.is_gated() ? WeightConversion::Flat : WeightConversion::AsIs;
  const auto add = [&](std::string_view ours, WeightConversion conversion, std::vector<std::string_view> theirs) {
    names.counterparts.push_back({ours, conversion, std::move(theirs)});
  };
  if (are_gates_separate) {
    add("mlp.linear_fc1", WeightConversion::Stacked, {"mlp.linear_fc1.gate", "mlp.linear_fc1.up"});
    add("mlp.shared_experts.linear_fc1", WeightConversion::Stacked,
        {"mlp.shared_experts.linear_fc1.gate", "mlp.shared_experts.linear_fc1.up"});
    add("mlp.experts.linear_fc1", WeightConversion::PerExpert,
        {"mlp.experts.experts.#.linear_fc1.gate", "mlp.experts.experts.#.linear_fc1.up"});
  } else {
    add("mlp.linear_fc1", fused, {"mlp.linear_fc1"});
    add("mlp.shared_experts.linear_fc1", fused, {"mlp.shared_experts.linear_fc1"});
    if (are_experts_separate)
      add("mlp.experts.linear_fc1", WeightConversion::PerExpert, {"mlp.experts.experts.#.linear_fc1"});
    else
      add("mlp.experts.linear_fc1", WeightConversion::ExpertRows, {"mlp.experts.experts.linear_fc1"});
  }
  if (are_experts_separate)
    add("mlp.experts.linear_fc2", WeightConversion::PerExpert, {"mlp.experts.experts.#.linear_fc2"});
  else
    add("mlp.experts.linear_fc2", WeightConversion::ExpertRows, {"mlp.experts.experts.linear_fc2"});
}

}  // namespace

WeightNames megatron_names(const ModelConfig& model, const TensorFiles& files) {
  WeightNames names{.base = "",
                    .layers = "decoder.layers.",
                    .output = "output_layer",
                    .prediction = PredictionForm::Megatron,
                    .counterparts = {}};
  const auto add = [&](std::string_view ours, WeightConversion conversion, std::string_view theirs) {
    names.counterparts.push_back({ours, conversion, {theirs}});
  };
  for (const std::string_view name :
       {"embedding.position_embeddings", "input_layernorm", "self_attention.q_layernorm", "self_attention.k_layernorm",
        "self_attention.linear_proj", "self_attention.linear_q_down_proj", "self_attention.kv_layernorm",
        "pre_mlp_layernorm", "mlp.linear_fc2", "mlp.router", "mlp.router.expert_bias", "mlp.shared_experts.linear_fc2",
        "mlp.shared_experts.gate", "decoder.final_layernorm"})
    add(name, WeightConversion::AsIs, name);
  for (const auto& [ours, theirs] :
       std::initializer_list<std::pair<std::string_view, std::string_view>>{{"mtp.enorm", "enorm"},
                                                                            {"mtp.hnorm", "hnorm"},
                                                                            {"mtp.eh_proj", "eh_proj"},
                                                                            {"mtp.final_layernorm", "final_layernorm"}})
    add(ours, WeightConversion::AsIs, theirs);
  add("embedding.word_embeddings", WeightConversion::Padded, "embedding.word_embeddings");
  add("self_attention.linear_qkv", WeightConversion::Flat, "self_attention.linear_qkv");
  for (const std::string_view name : {"self_attention.linear_q_proj", "self_attention.linear_q_up_proj"})
    add(name, WeightConversion::LatentQueries, name);
  add("self_attention.linear_kv_down_proj", WeightConversion::Latents, "self_attention.linear_kv_down_proj");
  add("self_attention.linear_kv_up_proj", WeightConversion::Flat, "self_attention.linear_kv_up_proj");
  add_feed_forward(names, model, files);
  names.counterparts.push_back({"output_layer", WeightConversion::Padded, {}});
  return names;
}

}  // namespace mcpp
