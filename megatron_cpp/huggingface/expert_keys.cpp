#include "megatron_cpp/huggingface/expert_keys.h"

#include <algorithm>
#include <set>

#include "model/config/expert_layers.h"

namespace mcpp {
namespace {

void parse_mixtral(const ConfigJson& config, ModelConfig& model) {
  model.moe.num_experts = config.integer("num_local_experts", 8);
  const double jitter = config.number("router_jitter_noise", 0);
  config.require(jitter == 0, "router_jitter_noise", jitter, "0");
}

/// transformers makes layer i sparse where decoder_sparse_step divides i + 1 and mlp_only_layers does not name it.
std::vector<i64> sparse_layers(const ConfigJson& config, i64 num_layers) {
  const i64 step = config.integer("decoder_sparse_step", 1);
  std::set<i64> dense;
  if (config.find("mlp_only_layers"))
    for (const Json& layer : config.array("mlp_only_layers")) dense.insert(layer.get<i64>());
  std::vector<i64> layers;
  for (i64 i = 0; i < num_layers; ++i) layers.push_back((i + 1) % step == 0 && !dense.contains(i) ? 1 : 0);
  if (std::ranges::all_of(layers, [](i64 x) { return x == 1; })) return {1};
  return layers;
}

void parse_qwen(const ConfigJson& config, bool has_shared_expert, ModelConfig& model) {
  MoeConfig& moe = model.moe;
  const char* key = config.find("num_local_experts") ? "num_local_experts" : "num_experts";  // of transformers 5, of 4
  moe.num_experts = config.integer(key, has_shared_expert ? 60 : 128);
  moe.ffn_hidden_size = config.integer("moe_intermediate_size", has_shared_expert ? 1408 : 768);
  moe.layer_freq = sparse_layers(config, model.num_layers);
  moe.router_pre_softmax = !config.flag("norm_topk_prob", false);
  if (!has_shared_expert) return;
  moe.shared_expert_intermediate_size = config.integer("shared_expert_intermediate_size", 5632);
  moe.shared_expert_gate = true;
}

}  // namespace

void parse_experts(const ConfigJson& config, ExpertKeys keys, ModelConfig& model) {
  if (keys == ExpertKeys::None) return;
  const bool is_mixtral = keys == ExpertKeys::Mixtral;
  is_mixtral ? parse_mixtral(config, model) : parse_qwen(config, keys == ExpertKeys::Qwen2, model);
  model.moe.router_topk = config.integer("num_experts_per_tok", is_mixtral ? 2 : keys == ExpertKeys::Qwen2 ? 4 : 8);
  model.moe.aux_loss_coeff = config.number("router_aux_loss_coef", 0.001);
}

void add_experts(const ModelConfig& m, ExpertKeys keys, OrderedJson& json) {
  if (keys == ExpertKeys::None) return;
  json["num_experts_per_tok"] = m.moe.router_topk;
  json["router_aux_loss_coef"] = m.moe.aux_loss_coeff;
  if (keys == ExpertKeys::Mixtral) {
    json["intermediate_size"] = m.moe_ffn();
    json["num_local_experts"] = m.moe.num_experts;
    return;
  }
  std::vector<i64> dense;
  for (i64 layer = 0; layer < m.num_layers; ++layer)
    if (!m.moe.has_experts(layer)) dense.push_back(layer);
  json["num_experts"] = m.moe.num_experts;
  json["moe_intermediate_size"] = m.moe_ffn();
  if (keys == ExpertKeys::Qwen2) json["shared_expert_intermediate_size"] = m.moe.shared_expert_intermediate_size;
  json["norm_topk_prob"] = !m.moe.router_pre_softmax;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = dense;
}

}  // namespace mcpp
