// Router of a mixture of experts: selects the experts of each token and their weights. Logits, scores, weights and
// losses are fp32 or fp64 (moe_router_dtype) regardless of the model's dtype, and counts are integers, because discrete
// choices depend on them.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/stored_ref.h"
#include "model/layers/fp32_linear.h"

namespace mcpp {

/// Routing statistics of the microbatches of a step. Additive over ranks.
struct RoutingCounts {
  std::vector<double> tokens;  ///< [num_experts]: number of choices of each expert, including dropped ones
  double dropped = 0;          ///< choices dropped because their expert was full
  /// Mean of the balancing losses, weighted by their coefficients and summed over tokens: 1 per token if experts are
  /// perfectly balanced.
  double balance_loss = 0;
  double z_loss = 0;  ///< loss without its coefficient, summed over tokens

  static i64 count(i64 num_experts) { return num_experts + 3; }
  std::vector<double> values() const;
  static RoutingCounts from_values(std::span<const double> values);
};

/// Returns the name of the expert bias of the router with this weight name; empty for names of other parameters.
std::string expert_bias_name(const std::string& weight);

/// Tokens of a router's rows: `count` tokens of `batch` samples, sequence first, starting at token `first`. Additional
/// rows are padding.
struct TokenRows {
  i64 first = 0, count = 0, batch = 1;
  PositionRanges positions = {};  ///< positions of all rows of the sequence

  /// Returns the index of a row's token in the microbatch, which is independent of the layout.
  i64 token_index(i64 row) const { return positions.at((first + row) / batch) * batch + (first + row) % batch; }
};

class Router {
 public:
  Router(const std::string& name, StoredRef<ModelContext> context);

  struct Output {
    Tensor experts;  ///< int32 [T, k]; -1 = dropped
    Tensor weights;  ///< [T, k] of the model's accumulate dtype
  };
  /// Routes x [T, h]. In training it updates the statistics, except when recomputing. Saves its logits [T, num_experts]
  /// and its decisions.
  Output forward(const Tensor& x, const TokenRows& rows, MicrobatchContext& microbatch);
  /// Adds to dx [T, h] the gradient that follows from d_weights [T, k] and from the balancing losses. x and rows are
  /// the arguments of forward().
  void backward(const Tensor& d_weights, const Tensor& x, const TokenRows& rows, Tensor& dx,
                MicrobatchContext& microbatch);
  void visit(const ParamVisitor& f) { linear_.visit(f); }
  /// Returns the maximum number of tokens per expert for a microbatch of `batch` samples; 0 = unlimited. Capacity is
  /// unlimited outside of training, where the result of a token must not depend on other tokens of the batch.
  i64 capacity(i64 batch, const MicrobatchContext& microbatch) const;
  const Param& weight() const { return linear_.weight(); }

  /// Returns the statistics since the last clear_counts().
  RoutingCounts& tally() { return tally_; }
  void clear_counts();

  /// Return state that steps update without gradients, fp32 [num_experts]; nullptr if the configuration does not use
  /// it. The bias is part of the model; the token counts of the previous step are not.
  Tensor* expert_bias() { return expert_bias_.defined() ? &expert_bias_ : nullptr; }
  Tensor* global_tokens() { return global_tokens_.defined() ? &global_tokens_ : nullptr; }
  std::string bias_name() const { return expert_bias_name(weight().name); }
  /// Allocates the state, zero-initialized. A model on the meta device has none.
  void allocate_state();
  /// Updates the state after a successful step in which the experts were chosen `tokens` times, summed over all ranks.
  void end_step(std::span<const double> tokens);

 private:
  /// Returns the chosen experts, the experts that remain after dropping, and the factors of the balancing loss if there
  /// is one.
  MicrobatchContext::Decisions decide(const Tensor& logits, const TokenRows& rows, const MicrobatchContext& microbatch);
  /// Returns p = 0 in evaluation or without jitter.
  Dropout make_jitter(const TokenRows& rows, const MicrobatchContext& microbatch) const;
  /// Returns the router's input for x: with jitter, in the dtype of the logits.
  Tensor router_input(const Tensor& x, const Dropout& jitter) const;
  /// Returns the scores that determine the choice of experts: logits, or random values in training if the configuration
  /// forces balance.
  Tensor routing_scores(const Tensor& logits, const TokenRows& rows, const MicrobatchContext& microbatch) const;
  Tensor routing_weights(const Tensor& logits, const Tensor& chosen) const;
  Tensor drop_padding(const Tensor& chosen, const TokenRows& rows) const;
  Tensor drop_overflowing(const Tensor& logits, const Tensor& chosen, const TokenRows& rows, i64 capacity) const;
  /// Returns the weighted mean of the factors of all balancing losses, given the choices by scores without the expert
  /// bias (DeepSeek-V3, equation 18): fp64 [b, num_experts], or [1, num_experts] if they are equal for all samples.
  Tensor loss_factors(const Tensor& chosen, const TokenRows& rows) const;
  Tensor loss_factors(LoadBalancing type, const Tensor& chosen, const TokenRows& rows) const;
  std::vector<double> counts_by_sample(const Tensor& chosen, i64 groups) const;
  void count(const Tensor& logits, const MicrobatchContext::Decisions& decisions);
  void add_loss_gradient(const Tensor& logits, const Tensor& factors, double grad_scale, Tensor& d_logits) const;
  bool has_balance_loss() const;

  std::string name_;
  const ModelContext& context_;
  const MoeConfig& config_;
  RoutingRule rule_;
  Fp32Linear linear_;
  Tensor expert_bias_, global_tokens_;  // undefined if the configuration does not use them
  RoutingCounts tally_;
};

}  // namespace mcpp
