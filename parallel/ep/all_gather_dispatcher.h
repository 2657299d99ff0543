// All tokens go to all ranks of the exchange, each of which takes those of its experts, and the sums come back reduced:
// two plain collectives, of more bytes than the exchange of what is needed, unless each token has about as many experts
// as there are ranks.
#pragma once
#include "parallel/ep/dispatch_plan.h"
#include "parallel/ep/token_dispatcher.h"

namespace mcpp {

class AllGatherDispatcher final : public TokenDispatcher {
 public:
  /// The exchange has more than one rank.
  AllGatherDispatcher(const ExpertChoice& choice, const ExpertParallel& parallel);

  Tensor dispatch(const Tensor& tokens, const Meanwhile& meanwhile) override;
  std::span<const i64> rows() const override { return plan_.rows; }
  Combined combine(const Tensor& y, const Tensor& weights) override;
  Gradients combine_backward(const Tensor& d_out, const Tensor& kept, const Tensor& weights) override;
  Tensor dispatch_backward(const Tensor& d_rows, const Meanwhile& meanwhile) override;

 private:
  /// Of all ranks, one after another.
  Tensor all(
      const Tensor& own, const Meanwhile& meanwhile = [] {}) const;
  /// This rank's part of the sum over ranks.
  Tensor own_sum(
      const Tensor& parts, const Meanwhile& meanwhile = [] {}) const;

  ExpertParallel parallel_;
  DispatchPlan plan_;  // of the tokens of all ranks, to this rank's experts alone
  Tensor tokens_, slots_;
};

}  // namespace mcpp
