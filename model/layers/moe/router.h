// The router of a mixture of experts: which experts take a token, and how much each counts. Scores, weights and losses
// are fp32 whatever the model's type is, and counts are whole numbers, as both decide.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/kept_ref.h"
#include "model/layers/wide_linear.h"

namespace mcpp {

/// What was seen of a router over the microbatches of a step. What ranks saw adds up.
struct RouterTally {
  std::vector<double> tokens;  ///< [num_experts] how often each was chosen, dropped choices included
  double dropped = 0;          ///< choices that found their expert full
  double balance_loss = 0;  ///< without its coefficient, summed over tokens: 1 for each when experts are equally busy
  double z_loss = 0;        ///< without its coefficient, summed over tokens

  static i64 count(i64 num_experts) { return num_experts + 3; }
  std::vector<double> numbers() const;
  static RouterTally of(std::span<const double> numbers);
};

/// What the expert bias of the router is called whose weight has this name; empty for names of other parameters.
std::string expert_bias_name(const std::string& weight);

/// Of which tokens the rows are that a router sees: of those of `batch` samples, sequence first, the ones from `first`
/// on, `count` of them; rows that follow only fill up.
struct TokenRows {
  i64 first = 0, count = 0, batch = 1;
  PositionRanges positions = {};  ///< of all rows of the sequence

  /// Where the token of a row stands in the microbatch, which no layout changes.
  i64 place(i64 row) const { return positions.at((first + row) / batch) * batch + (first + row) % batch; }
};

class Router {
 public:
  Router(const std::string& name, KeptRef<ModelContext> context);

  struct Output {
    Tensor experts;  ///< int32 [T, k]; -1 = dropped
    Tensor weights;  ///< [T, k] fp32 (fp64)
  };
  /// x [T, h]. In training it counts what it decides, unless that is done again for backward. Saves its logits [T,
  /// num_experts], and what it decided.
  Output forward(const Tensor& x, const TokenRows& rows, Pass& pass);
  /// x and rows as forward was given them; dx [T, h] += the gradient, from that of the weights [T, k] and those of the
  /// losses that keep the router in balance.
  void backward(const Tensor& d_weights, const Tensor& x, const TokenRows& rows, Tensor& dx, Pass& pass);
  void visit(const ParamVisitor& f) { f(linear_.weight()); }
  /// The most tokens of a microbatch of `batch` samples that an expert takes; 0 = all that come, as outside of
  /// training, where what a token gives does not depend on which others it is computed with.
  i64 capacity(i64 batch, const Pass& pass) const;
  const Param& weight() const { return linear_.weight(); }

  /// Of the microbatches since it was last cleared.
  RouterTally& tally() { return tally_; }
  void clear_tally();

  /// Numbers that steps change, and not by gradients, fp32 [num_experts]; null where the configuration has none. The
  /// bias is part of the model; the tokens that each expert was given in the step before are not.
  Tensor* expert_bias() { return expert_bias_.defined() ? &expert_bias_ : nullptr; }
  Tensor* global_tokens() { return global_tokens_.defined() ? &global_tokens_ : nullptr; }
  std::string bias_name() const { return expert_bias_name(weight().name); }
  /// Allocates them, as zeros. A model that is only looked at has none.
  void make_state();
  /// After a step that was taken and in which the experts were chosen so often, over all ranks.
  void end_step(std::span<const double> tokens);

 private:
  /// The experts chosen, those that remain where tokens are dropped, and the factors of the balancing loss if there is
  /// one.
  Pass::Decisions decide(const Tensor& logits, const TokenRows& rows, const Pass& pass);
  /// Nothing is drawn (p = 0) in evaluation, or without jitter.
  Dropout jitter_of(const TokenRows& rows, const Pass& pass) const;
  /// What it looks at of x: with jitter in the type of logits.
  Tensor seen(const Tensor& x, const Dropout& jitter) const;
  /// What experts are chosen by: the logits, or random numbers in training where the configuration forces balance.
  Tensor choice_scores(const Tensor& logits, const TokenRows& rows, const Pass& pass) const;
  Tensor weights_of(const Tensor& logits, const Tensor& chosen) const;
  Tensor without_filling(const Tensor& chosen, const TokenRows& rows) const;
  Tensor without_overflow(const Tensor& logits, const Tensor& chosen, const TokenRows& rows, i64 capacity) const;
  Tensor loss_factors(const Tensor& chosen, const TokenRows& rows) const;
  std::vector<double> counts_by_sample(const Tensor& chosen, i64 groups) const;
  void count(const Tensor& logits, const Pass::Decisions& made);
  void add_loss_gradient(const Tensor& logits, const Tensor& factors, double grad_scale, Tensor& d_logits) const;
  bool has_balance_loss() const;

  std::string name_;
  const ModelContext& context_;
  const MoeConfig& config_;
  RoutingRule rule_;
  WideLinear linear_;
  Tensor expert_bias_, global_tokens_;  // undefined where the configuration has none
  RouterTally tally_;
};

}  // namespace mcpp
