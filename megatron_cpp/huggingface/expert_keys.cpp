#include "megatron_cpp/huggingface/expert_keys.h"

#include <algorithm>
#include <set>

#include "model/config/moe.h"

namespace mcpp {
namespace {

void parse_mixtral(const ConfigJson& config, ModelConfig& model) {
  model.moe.num_experts = config.integer("num_local_experts", 8);
  const double jitter = config.number("router_jitter_noise", 0);
  config.require(jitter == 0, "router_jitter_noise", jitter, "0");
}

/// Returns the sparse layers as in transformers: layer i if decoder_sparse_step divides i + 1 and mlp_only_layers does
/// not name it.
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
  const char* key = config.find("num_local_experts") ? "num_local_experts" : "num_experts";  // of transformers 5 and 4
  moe.num_experts = config.integer(key, has_shared_expert ? 60 : 128);
  moe.ffn_hidden_size = config.integer("moe_intermediate_size", has_shared_expert ? 1408 : 768);
  moe.layer_freq = sparse_layers(config, model.num_layers);
  moe.router_pre_softmax = !config.flag("norm_topk_prob", false);
  if (!has_shared_expert) return;
  moe.shared_expert_intermediate_size = config.integer("shared_expert_intermediate_size", 5632);
  moe.shared_expert_gate = true;
}

/// Returns the layers with experts: all but the first `dense` ones.
std::vector<i64> all_but_first(i64 dense, i64 num_layers) {
  if (dense == 0) return {1};
  std::vector<i64> layers(static_cast<std::size_t>(num_layers), 1);
  std::fill_n(layers.begin(), std::min(dense, num_layers), 0);
  return layers;
}
i64 count_first_dense(const ModelConfig& m) {
  i64 layer = 0;
  while (layer < m.num_layers && !m.moe.has_experts(layer)) ++layer;
  return layer;
}

/// DeepSeek scores a group by its two best experts; our model by as many as it would select from it.
constexpr i64 kBestOfGroup = 2;

void parse_deepseek(const ConfigJson& config, ModelConfig& model) {
  MoeConfig& moe = model.moe;
  constexpr i64 kMaxShared = 100000;
  moe.num_experts = config.integer("n_routed_experts");
  moe.router_topk = config.integer("num_experts_per_tok");
  moe.ffn_hidden_size = config.integer("moe_intermediate_size", 1408);
  const i64 shared = config.integer("n_shared_experts");
  config.require(shared <= kMaxShared, "n_shared_experts", shared, "no more than 100000");
  moe.shared_expert_intermediate_size = shared * moe.ffn_hidden_size;
  moe.layer_freq = all_but_first(config.count("first_k_dense_replace", 0), model.num_layers);
  moe.router_score_function = RouterScore::Sigmoid;
  moe.router_enable_expert_bias = true;
  const i64 groups = config.integer("n_group", 1), best = config.integer("topk_group", 1);
  if (groups > 1) moe.router_num_groups = groups, moe.router_group_topk = best;
  config.require(groups == 1 || moe.router_topk == kBestOfGroup * best, "topk_group", best,
                 "half of num_experts_per_tok");
  const bool normalizes = config.flag("norm_topk_prob", false);
  config.require(normalizes == (moe.router_topk > 1), "norm_topk_prob", normalizes ? "true" : "false",
                 "true, or with one expert for each token false");
  moe.router_topk_scaling_factor = config.number("routed_scaling_factor", 1);
  config.require(moe.router_topk_scaling_factor > 0, "routed_scaling_factor", moe.router_topk_scaling_factor,
                 "above 0");
}

void add_deepseek(const ModelConfig& m, OrderedJson& json) {
  const MoeConfig& moe = m.moe;
  json.update({{"n_routed_experts", moe.num_experts},
               {"n_shared_experts", moe.shared_expert_intermediate_size / m.moe_ffn()},
               {"moe_intermediate_size", m.moe_ffn()},
               {"first_k_dense_replace", count_first_dense(m)},
               {"n_group", std::max<i64>(moe.router_num_groups, 1)},
               {"topk_group", std::max<i64>(moe.router_group_topk, 1)},
               {"norm_topk_prob", moe.router_topk > 1},
               {"routed_scaling_factor", moe.routing().scale}});
}

}  // namespace

void parse_experts(const ConfigJson& config, ExpertKeys keys, ModelConfig& model) {
  if (keys == ExpertKeys::None || model.num_layers > kMaxLayers) return;
  if (keys == ExpertKeys::DeepSeek) return parse_deepseek(config, model);
  const bool is_mixtral = keys == ExpertKeys::Mixtral;
  is_mixtral ? parse_mixtral(config, model) : parse_qwen(config, keys == ExpertKeys::Qwen2, model);
  model.moe.router_topk = config.integer("num_experts_per_tok", is_mixtral ? 2 : keys == ExpertKeys::Qwen2 ? 4 : 8);
  model.moe.aux_loss_coeff = config.number("router_aux_loss_coef", 0.001);
}

std::vector<std::string> unsupported_expert_options(const ModelConfig& m, ExpertKeys keys) {
  const i64 shared = m.moe.shared_expert_intermediate_size;
  const bool has_shared = keys == ExpertKeys::Qwen2 || keys == ExpertKeys::DeepSeek;
  std::vector<std::string> unsupported;
  if (has_shared && (shared == 0 || (keys == ExpertKeys::DeepSeek && shared % m.moe_ffn() != 0)))
    unsupported.emplace_back("model.moe_shared_expert_intermediate_size");
  if (keys == ExpertKeys::DeepSeek && m.moe.router_num_groups > 1 &&
      m.moe.router_topk != kBestOfGroup * m.moe.router_group_topk)
    unsupported.emplace_back("model.moe_router_group_topk");
  return unsupported;
}

void add_experts(const ModelConfig& m, ExpertKeys keys, OrderedJson& json) {
  if (keys == ExpertKeys::None) return;
  json["num_experts_per_tok"] = m.moe.router_topk;
  if (keys == ExpertKeys::DeepSeek) return add_deepseek(m, json);
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
