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

void parse_qwen2_moe(const ConfigJson& config, ModelConfig& model) {
  MoeConfig& moe = model.moe;
  moe.num_experts = config.integer("num_experts", 60);
  moe.ffn_hidden_size = config.integer("moe_intermediate_size", 1408);
  moe.layer_freq = sparse_layers(config, model.num_layers);
  moe.router_pre_softmax = !config.flag("norm_topk_prob", false);
  moe.shared_expert_intermediate_size = config.integer("shared_expert_intermediate_size", 5632);
  moe.shared_expert_gate = true;
}

}  // namespace

bool has_experts(HuggingfaceFamily family) {
  return family == HuggingfaceFamily::Mixtral || family == HuggingfaceFamily::Qwen2Moe;
}

void parse_experts(const ConfigJson& config, HuggingfaceFamily family, ModelConfig& model) {
  if (!has_experts(family)) return;
  const bool is_mixtral = family == HuggingfaceFamily::Mixtral;
  is_mixtral ? parse_mixtral(config, model) : parse_qwen2_moe(config, model);
  model.moe.router_topk = config.integer("num_experts_per_tok", is_mixtral ? 2 : 4);
  model.moe.aux_loss_coeff = config.number("router_aux_loss_coef", 0.001);
}

void add_experts(const ModelConfig& m, HuggingfaceFamily family, OrderedJson& json) {
  if (!has_experts(family)) return;
  json["num_experts_per_tok"] = m.moe.router_topk;
  json["router_aux_loss_coef"] = m.moe.aux_loss_coeff;
  if (family == HuggingfaceFamily::Mixtral) {
    json["intermediate_size"] = m.moe_ffn();
    json["num_local_experts"] = m.moe.num_experts;
    return;
  }
  std::vector<i64> dense;
  for (i64 layer = 0; layer < m.num_layers; ++layer)
    if (!m.moe.has_experts(layer)) dense.push_back(layer);
  json["num_experts"] = m.moe.num_experts;
  json["moe_intermediate_size"] = m.moe_ffn();
  json["shared_expert_intermediate_size"] = m.moe.shared_expert_intermediate_size;
  json["norm_topk_prob"] = !m.moe.router_pre_softmax;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = dense;
}

std::vector<std::string> expert_obstacles(const ModelConfig& m, HuggingfaceFamily family) {
  if (!has_experts(family))
    return m.moe.num_experts == 0 ? std::vector<std::string>{} : std::vector<std::string>{"model.num_experts"};
  if (m.moe.num_experts == 0) return {"model.num_experts"};
  std::vector<std::string> found;
  const auto need = [&](bool holds, const char* key) {
    if (!holds) found.push_back(str("model.", key));
  };
  const MoeConfig& moe = m.moe;
  const bool is_mixtral = family == HuggingfaceFamily::Mixtral;
  need(moe.router_score_function == RouterScore::Softmax, "moe_router_score_function");
  need(moe.router_num_groups == 0, "moe_router_num_groups");
  need(moe.routing().scale == 1, "moe_router_topk_scaling_factor");
  need(moe.expert_capacity_factor == 0, "moe_expert_capacity_factor");
  need(!is_mixtral || static_cast<i64>(layers_with_experts(m.moe, 0, m.num_layers).size()) == m.num_layers,
       "moe_layer_freq");
  need(!is_mixtral || !moe.router_pre_softmax, "moe_router_pre_softmax");
  need(is_mixtral == (moe.shared_expert_intermediate_size == 0), "moe_shared_expert_intermediate_size");
  need(is_mixtral || moe.shared_expert_gate, "moe_shared_expert_gate");
  return found;
}

}  // namespace mcpp
