#include "model/config/moe.h"

#include <algorithm>
#include <any>
#include <numeric>

#include "base/strings.h"

namespace mcpp {
namespace {

/// Appends a conflict for each key that is set although the model has no experts.
void add_unread_keys(const MoeConfig& config, std::vector<std::string>& errors) {
  std::vector<std::any> default_values;
  const auto collect = [&](std::string_view, const auto& member, std::string_view, const Constraint& = {}) {
    default_values.emplace_back(member);
  };
  const MoeConfig defaults;
  MoeConfig::fields(defaults, collect);
  std::vector<std::string> names;
  std::size_t next = 0;
  const auto compare = [&]<class M>(std::string_view name, const M& member, std::string_view, const Constraint& = {}) {
    if (std::any_cast<const M&>(default_values[next++]) != member) names.emplace_back(name);
  };
  MoeConfig::fields(config, compare);
  if (!names.empty())
    errors.push_back(str("model.num_experts: must be set for any of the moe_ keys to be read; set it, or remove ",
                         join(names, ", ")));
}

void add_layer_conflicts(const MoeConfig& c, i64 num_layers, std::vector<std::string>& errors) {
  if (c.layer_freq.empty()) {
    errors.push_back("model.moe_layer_freq: must be [n] or have one value for each layer");
  } else if (c.layer_freq.size() == 1) {
    if (c.layer_freq[0] == 0) errors.push_back("model.moe_layer_freq: [n] must be at least 1");
  } else if (static_cast<i64>(c.layer_freq.size()) != num_layers) {
    errors.push_back(str("model.moe_layer_freq: has ", c.layer_freq.size(),
                         " values; must have one, or one for each of the ", num_layers, " layers"));
  } else if (std::ranges::any_of(c.layer_freq, [](i64 x) { return x > 1; })) {
    errors.push_back("model.moe_layer_freq: each entry must be 1 (experts) or 0 (dense)");
  } else if (std::ranges::count(c.layer_freq, 1) == 0) {
    errors.push_back(
        "model.moe_layer_freq: selects no layer for the num_experts experts; select a layer, or remove num_experts");
  }
}

void add_group_conflicts(const MoeConfig& c, std::vector<std::string>& errors) {
  const i64 groups = c.router_num_groups, selected = c.router_group_topk;
  if ((groups == 0) != (selected == 0)) {
    errors.push_back("model.moe_router_num_groups and moe_router_group_topk: must be set together, or not at all");
  }
  const i64 scores = c.router_group_score_topk;
  if (groups == 0 && scores > 0)
    errors.push_back("model.moe_router_group_score_topk: only read when moe_router_num_groups is set");
  if (groups == 0 || selected == 0) return;
  if (c.num_experts % groups != 0) {
    errors.push_back(str("model.moe_router_num_groups: ", groups, " does not divide num_experts = ", c.num_experts));
  } else if (selected > groups || c.router_topk > selected * (c.num_experts / groups)) {
    errors.push_back(str("model.moe_router_group_topk: ", selected, " of ", groups, " groups must have at least ",
                         "moe_router_topk = ", c.router_topk, " experts; each has ", c.num_experts / groups));
  } else if (c.router_topk < selected) {
    errors.push_back(str("model.moe_router_group_topk: ", selected, " is more than moe_router_topk = ", c.router_topk,
                         ", so some selected groups would contribute no expert"));
  } else if (scores > c.num_experts / groups) {
    errors.push_back(str("model.moe_router_group_score_topk: ", scores, " is more than the ", c.num_experts / groups,
                         " experts of a group"));
  }
}

void add_balancing_conflicts(const MoeConfig& c, std::vector<std::string>& errors) {
  const std::vector<LoadBalancing>& types = c.router_load_balancing_type.values();
  const std::size_t coefficients = c.aux_loss_coeff.values().size();
  if (types.size() != coefficients)
    errors.push_back(str("model.moe_aux_loss_coeff: must have one value for each of the ", types.size(),
                         " losses of moe_router_load_balancing_type, not ", coefficients));
  for (auto type = types.begin(); type != types.end(); ++type) {
    if (std::find(types.begin(), type, *type) != type)
      errors.push_back(
          str("model.moe_router_load_balancing_type: \"", enum_name(*type), "\" occurs twice; remove one of them"));
  }
  if (types.size() > 1 && std::ranges::count(types, LoadBalancing::None) > 0)
    errors.push_back("model.moe_router_load_balancing_type: \"none\" excludes balancing losses; remove it");
  if (types.size() == 1 && types[0] == LoadBalancing::None && c.total_aux_loss_coeff() > 0)
    errors.push_back("model.moe_aux_loss_coeff: only read when moe_router_load_balancing_type is not \"none\"");
}

}  // namespace

double MoeConfig::total_aux_loss_coeff() const {
  const std::vector<double>& values = aux_loss_coeff.values();
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double MoeConfig::aux_loss_coeff_of(LoadBalancing type) const {
  const std::vector<LoadBalancing>& types = router_load_balancing_type.values();
  const auto it = std::ranges::find(types, type);
  return it == types.end() ? 0 : aux_loss_coeff.values().at(static_cast<std::size_t>(it - types.begin()));
}

RoutingRule MoeConfig::routing() const {
  return {.topk = router_topk,
          .score = router_score_function,
          .pre_softmax = router_pre_softmax,
          .groups = router_num_groups,
          .group_topk = router_group_topk,
          .scale = router_topk_scaling_factor > 0 ? router_topk_scaling_factor : 1,
          .group_score_topk = router_group_score_topk};
}

void MoeConfig::add_conflicts(i64 num_layers, std::vector<std::string>& errors) const {
  if (num_experts == 0) return add_unread_keys(*this, errors);
  add_layer_conflicts(*this, num_layers, errors);
  add_group_conflicts(*this, errors);
  const bool is_softmax = router_score_function == RouterScore::Softmax;
  if (router_topk > num_experts)
    errors.push_back(str("model.moe_router_topk: ", router_topk, " is more than num_experts = ", num_experts));
  if (router_topk == 1 && is_softmax && !router_pre_softmax)
    errors.push_back(
        "model.moe_router_pre_softmax: must be true with moe_router_topk = 1, as the softmax over one expert is always "
        "1 and the router would not be trained");
  if (apply_probs_on_input && router_topk != 1)
    errors.push_back(str("model.moe_apply_probs_on_input: needs moe_router_topk = 1, not ", router_topk));
  if (router_pre_softmax && !is_softmax)
    errors.push_back("model.moe_router_pre_softmax: only read when moe_router_score_function is \"softmax\"");
  if (router_enable_expert_bias && is_softmax)
    errors.push_back(
        "model.moe_router_enable_expert_bias: needs moe_router_score_function = \"sigmoid\" or \"sqrtsoftplus\"");
  if (!router_enable_expert_bias && router_bias_update_rate != MoeConfig().router_bias_update_rate)
    errors.push_back("model.moe_router_bias_update_rate: only read when moe_router_enable_expert_bias is true");
  add_balancing_conflicts(*this, errors);
  if (expert_capacity_factor == 0 && token_drop_policy != MoeConfig().token_drop_policy)
    errors.push_back("model.moe_token_drop_policy: only read when moe_expert_capacity_factor is set");
  if (expert_capacity_factor == 0 && pad_expert_input_to_capacity)
    errors.push_back("model.moe_pad_expert_input_to_capacity: only read when moe_expert_capacity_factor is set");
  if (shared_expert_gate && shared_expert_intermediate_size == 0)
    errors.push_back("model.moe_shared_expert_gate: only read when moe_shared_expert_intermediate_size is set");
}

}  // namespace mcpp
