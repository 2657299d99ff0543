// Conversion of the number of layers for multi-token prediction in config.json. Only nemotron_h has a key for the
// branches of these layers. In other families, the model determines them.
#include <algorithm>

#include "megatron_cpp/huggingface/config_keys.h"
#include "model/config/block_spec.h"

namespace mcpp {

std::optional<i64> parse_prediction_layers(const ConfigJson& config, const LlamaTraits& traits) {
  if (traits.prediction == PredictionForm::None || !config.find(traits.prediction_key)) return std::nullopt;
  return config.count(traits.prediction_key, 0);
}

void check_prediction_layers(const ConfigJson& config, const LlamaTraits& traits, i64 count) {
  if (traits.prediction == PredictionForm::Module)
    config.require(count <= 1, traits.prediction_key, count, "0, 1; --mtp_num_layers replaces it, 0 = none");
}

void set_prediction_layers(ModelConfig& model, const LlamaTraits& traits, i64 count) {
  model.mtp_num_layers = count;
  if (count > 0 && traits.prediction == PredictionForm::Branches) return;  // config.json states the branches
  model.mtp_hybrid_layer_pattern.clear();
  if (count == 0 || model.num_layers > kMaxLayers) return;
  // In transformers and vLLM, layer 0 below "mtp." has the same kind of feed-forward part as layer 0 of the model.
  const BlockSpec last = block_spec(model, model.num_layers);
  const bool has_experts = traits.prediction == PredictionForm::After || block_spec(model, 0).moe();
  model.mtp_hybrid_layer_pattern = has_experts ? "*E" : "*-";
  if (block_spec(model, model.num_layers) == last) model.mtp_hybrid_layer_pattern.clear();
}

void add_prediction_layers(const ModelConfig& model, const LlamaTraits& traits, OrderedJson& json) {
  if (traits.prediction == PredictionForm::None) return;
  const bool is_module = traits.prediction == PredictionForm::Module;
  json[traits.prediction_key] = is_module ? std::min<i64>(model.mtp_num_layers, 1) : model.mtp_num_layers;
}

}  // namespace mcpp
