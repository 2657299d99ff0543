#include "model/layers/moe/router.h"

#include <numeric>

#include "parallel/ep/capacity.h"
#include "tensor/ops/low_precision/accumulate_copy.h"
#include "tensor/ops/routing_tables.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// Returns the index within the microbatch of the token of each row, int32 [rows, 1].
Tensor token_indices(const TokenRows& rows, i64 count, Device& device) {
  Tensor indices = Tensor::empty({count, 1}, DType::I32, device);
  for (i64 begin = 0, end = 0; begin < count; begin = end) {
    const i64 first = rows.token_index(begin);
    while (end < count && rows.token_index(end) == first + end - begin) ++end;
    Tensor run = indices.slice(begin, end);
    ops::fill_progression(run, {.first = first, .row_step = 1});
  }
  return indices;
}

}  // namespace

std::vector<double> RoutingCounts::values() const {
  std::vector<double> all = tokens;
  all.insert(all.end(), {dropped, balance_loss, z_loss});
  return all;
}

RoutingCounts RoutingCounts::from_values(std::span<const double> values) {
  const std::size_t experts = values.size() - 3;
  return {.tokens = {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(experts)},
          .dropped = values[experts],
          .balance_loss = values[experts + 1],
          .z_loss = values[experts + 2]};
}

std::string expert_bias_name(const std::string& weight) {
  constexpr std::string_view kRouter = ".router.", kWeight = "weight";
  if (!weight.ends_with(str(kRouter, kWeight))) return {};
  return weight.substr(0, weight.size() - kWeight.size()) + "expert_bias";
}

Router::Router(const std::string& name, StoredRef<ModelContext> context)
    : name_(name),
      context_(context),
      config_(context_.config.moe),
      rule_(config_.routing()),
      linear_(name, context_, config_.num_experts, config_.router_add_bias, config_.router_dtype == RouterDType::Fp64) {
  // Each rank routes its own tokens.
  linear_.visit([](Param& param) { param.placement.tp = {gradient_spread(ActivationPlacement::SequenceSharded)}; });
  tally_ = Tensor::zeros({RoutingCounts::count(config_.num_experts)}, DType::F64, context_.device, MemoryClass::Other);
}

RoutingCounts Router::read_tally() const {
  return RoutingCounts::from_values(read_values<double>(tally_));
}

void Router::clear_counts() {
  ops::fill_zero(tally_);
}

bool Router::has_balance_loss() const {
  return config_.total_aux_loss_coeff() > 0;
}

void Router::allocate_state() {
  const auto make = [&] {
    return Tensor::zeros({config_.num_experts}, DType::F32, context_.device, MemoryClass::Other);
  };
  if (config_.router_enable_expert_bias) expert_bias_ = make();
  if (config_.aux_loss_coeff_of(LoadBalancing::GlobalAuxLoss) > 0) global_tokens_ = make();
}

/// Changes the bias by a fixed step towards balance (Wang et al., "Auxiliary-Loss-Free Load Balancing", 2024).
void Router::end_step(std::span<const double> tokens) {
  if (global_tokens_.defined()) write_values(std::vector<float>(tokens.begin(), tokens.end()), global_tokens_);
  if (!expert_bias_.defined()) return;
  const double mean = std::accumulate(tokens.begin(), tokens.end(), 0.0) / static_cast<double>(tokens.size());
  HostValues<float> bias(expert_bias_);
  for (std::size_t e = 0; e < tokens.size(); ++e) {
    const int direction = tokens[e] < mean ? 1 : tokens[e] > mean ? -1 : 0;
    bias[e] += static_cast<float>(direction * config_.router_bias_update_rate);
  }
  bias.write_back();
}

i64 Router::capacity(i64 batch, const MicrobatchContext& microbatch) const {
  if (config_.expert_capacity_factor == 0 || !microbatch.training) return 0;
  const i64 choices = context_.config.seq_length * batch * rule_.topk;
  return expert_capacity(choices, config_.num_experts, config_.expert_capacity_factor);
}

Dropout Router::make_jitter(const TokenRows& rows, const MicrobatchContext& microbatch) const {
  return context_.dropout_for(config_.input_jitter_eps, name_, rows.positions.from(rows.first / rows.batch),
                              microbatch);
}

Tensor Router::router_input(const Tensor& x, const Dropout& jitter) const {
  if (jitter.p == 0) return x;
  const Tensor wide = to_dtype(x, linear_.dtype());
  Tensor jittered = Tensor::like(wide);
  ops::jitter(wide, jitter, jittered);
  return jittered;
}

/// Forced scores are jitter factors of 1, which depend on seed, layer, sample and position.
Tensor Router::routing_scores(const Tensor& logits, const TokenRows& rows, const MicrobatchContext& microbatch) const {
  const double forced = config_.router_force_load_balancing ? 0.5 : 0;
  const Dropout random_factors =
      context_.dropout_for(forced, name_ + ".choice", rows.positions.from(rows.first / rows.batch), microbatch);
  if (random_factors.p == 0) return logits;
  Tensor scores = Tensor::like(logits);
  ops::fill(scores, 1);
  ops::jitter(scores, random_factors, scores);
  return scores;
}

Tensor Router::routing_weights(const Tensor& logits, const Tensor& chosen) const {
  Tensor weights = Tensor::like(logits, chosen.shape());
  ops::routing_weights(logits, chosen, rule_, weights);
  return weights;
}

Router::Output Router::forward(const Tensor& x, const TokenRows& rows, MicrobatchContext& microbatch) {
  const Tensor logits = linear_.forward(router_input(x, make_jitter(rows, microbatch)));
  microbatch.save(this, logits);
  const MicrobatchContext::Decisions decisions =
      microbatch.decide(this, [&] { return decide(logits, rows, microbatch); });
  for (const Tensor& t : decisions) microbatch.save(this, t);
  const Tensor &chosen = decisions[0], &experts = decisions[1];
  return {.experts = experts, .weights = to_dtype(routing_weights(logits, chosen), accumulate_dtype(context_.dtype))};
}

MicrobatchContext::Decisions Router::decide(const Tensor& logits, const TokenRows& rows,
                                            const MicrobatchContext& microbatch) {
  const Tensor scores = routing_scores(logits, rows, microbatch);
  const auto choose = [&](const Tensor* bias) {
    Tensor experts = Tensor::empty({logits.dim(0), rule_.topk}, DType::I32, logits.device());
    ops::choose_experts(scores, bias, rule_, experts);
    return experts;
  };
  const Tensor chosen = choose(expert_bias());
  Tensor experts = chosen;
  if (rows.count < logits.dim(0)) experts = drop_padding(chosen, rows);
  if (const i64 capacity_limit = capacity(rows.batch, microbatch); capacity_limit > 0)
    experts = drop_overflowing(logits, chosen, rows, capacity_limit);
  MicrobatchContext::Decisions decisions{chosen, experts};
  if (!microbatch.training) return decisions;
  if (has_balance_loss()) decisions.push_back(loss_factors(expert_bias() ? choose(nullptr) : chosen, rows));
  count(logits, decisions);
  return decisions;
}

/// Removes the choices of padding rows.
Tensor Router::drop_padding(const Tensor& chosen, const TokenRows& rows) const {
  Tensor experts = Tensor::like(chosen);
  Tensor kept = experts.slice(0, rows.count), padding = experts.slice(rows.count, experts.dim(0));
  ops::copy(chosen.slice(0, rows.count), kept);
  ops::fill_progression(padding, {.first = -1});
  return experts;
}

/// Drops choices above the capacity of an expert over the entire microbatch, independent of the layout.
Tensor Router::drop_overflowing(const Tensor& logits, const Tensor& chosen, const TokenRows& rows, i64 capacity) const {
  const bool by_weight = config_.token_drop_policy == TokenDropPolicy::Probs;
  return drop_overflow({.experts = chosen,
                        .weights = by_weight ? routing_weights(logits, chosen) : Tensor(),
                        .order = token_indices(rows, chosen.dim(0), chosen.device()),
                        .num_experts = config_.num_experts,
                        .capacity = capacity},
                       context_.experts.sample);
}

/// Gradient with respect to the scores, times tokens, of the mean over tokens of num_experts x sum over experts of (its
/// share of the choices) x (its score): Fedus et al. 2021, equation 4.
Tensor Router::loss_factors(LoadBalancing type, const Tensor& chosen, const TokenRows& rows) const {
  const bool by_sample = type == LoadBalancing::SeqAuxLoss;
  const i64 experts = config_.num_experts, groups = by_sample ? rows.batch : 1;
  Tensor factors = Tensor::zeros({groups, experts}, DType::F64, chosen.device()), none;
  if (type == LoadBalancing::GlobalAuxLoss && global_tokens_.defined()) {
    ops::copy(global_tokens_, factors);
  } else {
    ops::tally_choices(chosen, factors, none);
    if (context_.experts.sample) context_.experts.sample->all_reduce(factors, ReduceOp::Sum).wait();
  }
  ops::divide_by_mean(factors);
  return factors;
}

Tensor Router::loss_factors(const Tensor& chosen, const TokenRows& rows) const {
  const i64 groups = config_.aux_loss_coeff_of(LoadBalancing::SeqAuxLoss) > 0 ? rows.batch : 1;
  Tensor mean = Tensor::zeros({groups, config_.num_experts}, DType::F64, chosen.device());
  for (const LoadBalancing type : config_.router_load_balancing_type.values()) {
    const double weight = config_.aux_loss_coeff_of(type) / config_.total_aux_loss_coeff();
    if (weight == 0) continue;
    Tensor factors = loss_factors(type, chosen, rows);
    if (weight == 1) return factors;
    ops::scale(factors, weight);
    for (i64 group = 0; group < groups; ++group) {
      Tensor of_group = mean.slice(group, group + 1);
      ops::add_to(factors.dim(0) == 1 ? factors : factors.slice(group, group + 1), of_group);
    }
  }
  return mean;
}

void Router::count(const Tensor& logits, const MicrobatchContext::Decisions& decisions) {
  const Tensor &chosen = decisions[0], &experts = decisions[1];
  const auto part = [this](i64 first, i64 count) { return tally_.flat(first, count); };
  Tensor tokens = part(0, config_.num_experts).view({1, -1}), dropped = part(config_.num_experts, 1),
         balance_loss = part(config_.num_experts + 1, 1), z_loss = part(config_.num_experts + 2, 1), none;
  ops::tally_choices(chosen, tokens, none);
  if (experts.raw() != chosen.raw()) ops::tally_choices(experts, none, dropped);
  if (!has_balance_loss() && config_.z_loss_coeff == 0) return;
  const Shape shape = has_balance_loss() ? decisions[2].shape() : Shape{1, config_.num_experts};
  Tensor sums = Tensor::empty(shape, DType::F64, logits.device()),
         squares = Tensor::empty({1}, DType::F64, logits.device());
  ops::router_score_sums(logits, rule_.score, sums, squares);
  ops::add_to(squares, z_loss);
  if (has_balance_loss()) ops::add_dot(sums, decisions[2], balance_loss);
}

void Router::add_loss_gradient(const Tensor& logits, const Tensor& factors, const MicrobatchContext& microbatch,
                               Tensor& d_logits) const {
  if (!has_balance_loss() && config_.z_loss_coeff == 0) return;
  ops::router_score_sums_backward(logits, rule_.score,
                                  {.factors = factors,
                                   .scale = config_.total_aux_loss_coeff() * microbatch.grad_scale,
                                   .z_scale = config_.z_loss_coeff * microbatch.grad_scale,
                                   .multiplier = microbatch.loss_factor},
                                  d_logits);
}

void Router::backward(const Tensor& d_weights, const Tensor& x, const TokenRows& rows, Tensor& dx,
                      MicrobatchContext& microbatch) {
  const Tensor factors = has_balance_loss() ? microbatch.take(this) : Tensor();
  microbatch.take(this);  // choices after dropping, which do not affect the weights
  const Tensor chosen = microbatch.take(this), logits = microbatch.take(this);
  Tensor d_logits = Tensor::like(logits);
  ops::routing_weights_backward(to_dtype(d_weights, logits.dtype()), logits, chosen, rule_, d_logits);
  add_loss_gradient(logits, factors, microbatch, d_logits);
  const Dropout jitter = make_jitter(rows, microbatch);
  linear_.weight_gradient(
      d_logits, [this, x, jitter] { return router_input(x, jitter); }, microbatch);
  linear_.bias_gradient(d_logits.slice(0, rows.count));  // excludes padding rows
  Tensor d_input = linear_.input_gradient(d_logits);
  if (jitter.p > 0) ops::jitter(d_input, jitter, d_input);
  add_converted(d_input, dx);
}

}  // namespace mcpp
