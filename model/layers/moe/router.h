// Router of a mixture of experts: selects the experts of each token and computes their weights. Logits, scores, weights
// and losses are fp32 or fp64 (moe_router_dtype) regardless of the model's dtype, because discrete choices depend on
// them.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/stored_ref.h"
#include "model/layers/fp32_linear.h"

namespace mcpp {

/// Routing statistics of the microbatches of a step. Statistics of different ranks are added.
struct RoutingCounts {
  std::vector<double> tokens;  ///< [num_experts]: number of choices of each expert, including dropped ones
  double dropped = 0;          ///< choices dropped because the expert was over capacity
  /// Mean of the balancing losses, weighted by their coefficients, summed over tokens. It is 1 per token if the experts
  /// are perfectly balanced.
  double balance_loss = 0;
  double z_loss = 0;  ///< z-loss before multiplying by its coefficient, summed over tokens

  static i64 count(i64 num_experts) { return num_experts + 3; }
  std::vector<double> values() const;
  /// Returns the statistics of the values in the order of values().
  static RoutingCounts from_values(std::span<const double> values);
};

/// Returns the name of the expert bias that belongs to a router's weight. Empty if `weight` is not a router's weight.
std::string expert_bias_name(const std::string& weight);

/// Tokens of the rows of x on one rank: `count` tokens, starting at token `first`, of the tokens [s, b] of `batch`
/// samples. Further rows are padding.
struct TokenRows {
  i64 first = 0, count = 0, batch = 1;
  PositionRanges positions = {};  ///< positions of all rows of the sequence

  /// Returns the index within the microbatch of a row's token, which does not depend on the layout.
  i64 token_index(i64 row) const { return positions.at((first + row) / batch) * batch + (first + row) % batch; }
};

class Router {
 public:
  Router(const std::string& name, StoredRef<ModelContext> context);

  struct Output {
    Tensor experts;  ///< int32 [T, k]; -1: dropped
    Tensor weights;  ///< [T, k] in the model's accumulate dtype
  };
  /// Routes x [T, h]. Updates the statistics in training, except when recomputing. Saves the logits [T, num_experts]
  /// and the decisions.
  Output forward(const Tensor& x, const TokenRows& rows, MicrobatchContext& microbatch);
  /// Adds the gradient through the weights, given d_weights [T, k], and the gradient of the balancing losses to dx [T,
  /// h]. `x` and `rows` are the arguments of forward().
  void backward(const Tensor& d_weights, const Tensor& x, const TokenRows& rows, Tensor& dx,
                MicrobatchContext& microbatch);
  void visit(const ParamVisitor& f) { linear_.visit(f); }
  /// Returns the maximum number of tokens per expert for a microbatch of `batch` samples; 0: unlimited. Evaluation has
  /// no limit, so that the result of a token does not depend on other tokens of the batch.
  i64 capacity(i64 batch, const MicrobatchContext& microbatch) const;
  const Param& weight() const { return linear_.weight(); }

  /// Returns the statistics since the last clear_counts(), as RoutingCounts::values(): fp64 [RoutingCounts::count()].
  const Tensor& tally() const { return tally_; }
  /// Returns the same statistics. Waits for the device.
  RoutingCounts read_tally() const;
  void clear_counts();

  /// These functions return state that is updated per step without gradients, fp32 [num_experts], or nullptr if the
  /// configuration does not use it. The bias is part of the model. The token counts of the previous step are not.
  Tensor* expert_bias() { return expert_bias_.defined() ? &expert_bias_ : nullptr; }
  Tensor* global_tokens() { return global_tokens_.defined() ? &global_tokens_ : nullptr; }
  std::string bias_name() const { return expert_bias_name(weight().name); }
  /// Allocates this state and sets it to zero. Not called on the meta device.
  void allocate_state();
  /// Updates this state after a successful step. `tokens` are the choices of each expert, summed over all ranks.
  void end_step(std::span<const double> tokens);

 private:
  /// Returns the chosen experts, the experts that remain after dropping, and the factors of the balancing loss, if
  /// used.
  MicrobatchContext::Decisions decide(const Tensor& logits, const TokenRows& rows, const MicrobatchContext& microbatch);
  /// Returns the jitter of the router's input; p = 0 in evaluation or if the configuration has no jitter.
  Dropout make_jitter(const TokenRows& rows, const MicrobatchContext& microbatch) const;
  /// Returns x after jitter, in the dtype of the logits.
  Tensor router_input(const Tensor& x, const Dropout& jitter) const;
  /// Returns the scores that determine the choice of experts: the logits, or random values in training with
  /// moe_router_force_load_balancing.
  Tensor routing_scores(const Tensor& logits, const TokenRows& rows, const MicrobatchContext& microbatch) const;
  Tensor routing_weights(const Tensor& logits, const Tensor& chosen) const;
  Tensor drop_padding(const Tensor& chosen, const TokenRows& rows) const;
  Tensor drop_overflowing(const Tensor& logits, const Tensor& chosen, const TokenRows& rows, i64 capacity) const;
  /// Returns the weighted mean of the factors of all balancing losses, given the choices by scores without the expert
  /// bias (DeepSeek-V3, equation 18): fp64 [b, num_experts], or [1, num_experts] if they are equal for all samples.
  Tensor loss_factors(const Tensor& chosen, const TokenRows& rows) const;
  Tensor loss_factors(LoadBalancing type, const Tensor& chosen, const TokenRows& rows) const;
  void count(const Tensor& logits, const MicrobatchContext::Decisions& decisions);
  void add_loss_gradient(const Tensor& logits, const Tensor& factors, const MicrobatchContext& microbatch,
                         Tensor& d_logits) const;
  bool has_balance_loss() const;

  std::string name_;
  const ModelContext& context_;
  const MoeConfig& config_;
  RoutingRule rule_;
  Fp32Linear linear_;
  Tensor expert_bias_, global_tokens_;  // undefined if not used
  Tensor tally_;
};

}  // namespace mcpp
