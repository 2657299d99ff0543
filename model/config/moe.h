// Configuration of mixtures of experts, in which a router selects a few of the MLPs of a layer for each token. The keys
// have the names of Megatron Core.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "tensor/ops/ops.h"

namespace mcpp {

template <>
struct EnumNames<RouterScore> {
  static constexpr std::array<std::string_view, 3> value{"softmax", "sigmoid", "sqrtsoftplus"};
};

/// Load balancing of experts. AuxLoss is computed per microbatch (Shazeer et al. 2017; Fedus et al., "Switch
/// Transformers", 2021), SeqAuxLoss per sample (DeepSeek-V2). GlobalAuxLoss compares a microbatch with the routing of
/// all tokens of the previous step (Qiu et al., "Demons in the Detail", 2025).
enum class LoadBalancing { AuxLoss, SeqAuxLoss, GlobalAuxLoss, None };
template <>
struct EnumNames<LoadBalancing> {
  static constexpr std::array<std::string_view, 4> value{"aux_loss", "seq_aux_loss", "global_aux_loss", "none"};
};

/// Type in which the router computes logits, scores and weights.
enum class RouterDType { Fp32, Fp64 };
template <>
struct EnumNames<RouterDType> {
  static constexpr std::array<std::string_view, 2> value{"fp32", "fp64"};
};

/// Tokens that an expert over capacity drops: the least probable tokens, or the last tokens of the microbatch.
enum class TokenDropPolicy { Probs, Position };
template <>
struct EnumNames<TokenDropPolicy> {
  static constexpr std::array<std::string_view, 2> value{"probs", "position"};
};

struct MoeConfig {
  i64 num_experts = 0;
  std::vector<i64> layer_freq = {1};
  i64 ffn_hidden_size = 0;
  i64 latent_size = 0;
  RouterDType router_dtype = RouterDType::Fp32;
  i64 router_topk = 2;
  bool router_pre_softmax = false;
  RouterScore router_score_function = RouterScore::Softmax;
  i64 router_num_groups = 0;
  i64 router_group_topk = 0;
  i64 router_group_score_topk = 0;
  double router_topk_scaling_factor = 0;
  bool router_add_bias = false;
  bool router_enable_expert_bias = false;
  double router_bias_update_rate = 1e-3;
  OneOrList<LoadBalancing> router_load_balancing_type = LoadBalancing::AuxLoss;
  OneOrList<double> aux_loss_coeff = 0;
  double z_loss_coeff = 0;
  double input_jitter_eps = 0;
  bool router_force_load_balancing = false;
  double expert_capacity_factor = 0;
  bool pad_expert_input_to_capacity = false;
  TokenDropPolicy token_drop_policy = TokenDropPolicy::Probs;
  bool apply_probs_on_input = false;
  i64 shared_expert_intermediate_size = 0;
  bool shared_expert_gate = false;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("num_experts", self.num_experts, "experts per layer; 0 = no experts", between(0, 1e5));
    visit("moe_layer_freq", self.layer_freq,
          "layers with experts: [n] = every n-th from the first, or a list of 1 (experts) and 0 (dense)",
          between(0, 1e5));
    visit("moe_ffn_hidden_size", self.ffn_hidden_size, "width inside an expert; 0 = ffn_hidden_size", between(0, 1e7));
    visit("moe_latent_size", self.latent_size,
          "width of the latent that experts read and write, with a projection before and one after them; 0 = "
          "hidden_size, "
          "without projections",
          between(0, 1e6));
    visit("moe_router_dtype", self.router_dtype, "type in which the router computes logits, scores and weights");
    visit("moe_router_topk", self.router_topk, "experts per token", between(1, 1e5));
    visit("moe_router_pre_softmax", self.router_pre_softmax,
          "apply softmax over all experts before selection, instead of over the selected ones");
    visit("moe_router_score_function", self.router_score_function, "function that converts router logits to scores");
    visit("moe_router_num_groups", self.router_num_groups,
          "number of groups of experts; a token's experts are selected from its best groups; 0 = no groups",
          between(0, 1e5));
    visit("moe_router_group_topk", self.router_group_topk,
          "number of groups from which the experts of a token are selected", between(0, 1e5));
    visit("moe_router_group_score_topk", self.router_group_score_topk,
          "number of best scores that are summed as the score of a group; 0 = moe_router_topk / "
          "moe_router_group_topk",
          between(0, 1e5));
    visit("moe_router_topk_scaling_factor", self.router_topk_scaling_factor,
          "factor that multiplies the expert weights of a token; 0 = 1", at_least(0));
    visit("moe_router_add_bias", self.router_add_bias, "add a learned bias to the router's logits");
    visit("moe_router_enable_expert_bias", self.router_enable_expert_bias,
          "balance experts by a bias per expert that affects only selection; needs sigmoid or sqrtsoftplus scores");
    visit("moe_router_bias_update_rate", self.router_bias_update_rate, "change of the expert bias per step",
          at_least(0));
    visit("moe_router_load_balancing_type", self.router_load_balancing_type,
          "scope of the balancing loss: the tokens of a microbatch, of each sample, or of the previous step; or a list "
          "of losses");
    visit("moe_aux_loss_coeff", self.aux_loss_coeff,
          "weight of the balancing loss, or a list with one for each of moe_router_load_balancing_type", at_least(0));
    visit("moe_z_loss_coeff", self.z_loss_coeff, "weight of the loss that keeps the router's logits small",
          at_least(0));
    visit("moe_input_jitter_eps", self.input_jitter_eps,
          "in training, multiply the router's input by random factors between 1 - eps and 1 + eps", between(0, 0.5));
    visit("moe_router_force_load_balancing", self.router_force_load_balancing,
          "in training, select experts at random so that all ranks have equal work, for speed measurements");
    visit("moe_expert_capacity_factor", self.expert_capacity_factor,
          "limit on the tokens of an expert, as a multiple of its even share of a microbatch; 0 = no limit",
          at_least(0));
    visit("moe_pad_expert_input_to_capacity", self.pad_expert_input_to_capacity,
          "pad the input of each expert to its capacity, so that time and memory are constant");
    visit("moe_token_drop_policy", self.token_drop_policy,
          "tokens that an expert drops above its capacity: those with the lowest probability, or the last ones");
    visit("moe_apply_probs_on_input", self.apply_probs_on_input,
          "multiply the input of an expert by its weight, instead of its output; needs moe_router_topk = 1");
    visit("moe_shared_expert_intermediate_size", self.shared_expert_intermediate_size,
          "width of the shared expert, which processes every token; 0 = none", between(0, 1e7));
    visit("moe_shared_expert_gate", self.shared_expert_gate,
          "multiply the output of the shared expert by a gate (Qwen2-MoE)");
  }

  bool operator==(const MoeConfig&) const = default;

  /// Returns the sum of the weights of the balancing losses.
  double total_aux_loss_coeff() const;
  /// Returns the weight of the balancing loss of this type; 0 if it is not used.
  double aux_loss_coeff_of(LoadBalancing type) const;
  RoutingRule routing() const;
  /// Appends a message "model.key: ..." to `errors` for every violated rule and for every key that is set but not used.
  void add_conflicts(i64 num_layers, std::vector<std::string>& errors) const;
};

}  // namespace mcpp
