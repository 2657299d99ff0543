// All-to-all token dispatcher: each token is sent to the ranks of its experts, and the results are sent back. If an
// expert's width is sharded over several ranks, each of them gets the token and returns a partial sum.
#pragma once
#include "parallel/ep/dispatch_plan.h"
#include "parallel/ep/token_dispatcher.h"

namespace mcpp {

class AllToAllDispatcher final : public TokenDispatcher {
 public:
  AllToAllDispatcher(const ExpertChoice& choice, const ExpertParallel& parallel);

  Tensor dispatch(const Tensor& tokens, const OverlapFn& overlap_fn) override;
  std::span<const i64> rows() const override { return plan_.rows; }
  Combined combine(const Tensor& y, const Tensor& weights) override;
  Gradients combine_backward(const Tensor& d_out, const Tensor& kept, const Tensor& weights) override;
  Tensor dispatch_backward(const Tensor& d_rows, const OverlapFn& overlap_fn) override;

 private:
  /// Sends the rows [N, h] of choices, in the order of tokens_, to their experts; returns [M, h] by expert.
  Tensor to_experts(const Tensor& choices, const OverlapFn& overlap_fn) const;
  /// Sends rows back, summed over ranks that share an expert's width. Each of the two is the backward of the other.
  Tensor from_experts(const Tensor& rows, const OverlapFn& overlap_fn) const;
  /// Convert parts in rows to parts in elements, one per rank of the exchange.
  std::vector<Part> sent(i64 width, i64 copy_stride) const;
  std::vector<Part> received(i64 width) const;

  ExpertParallel parallel_;
  DispatchPlan plan_;
  Tensor tokens_, slots_, by_expert_, by_rank_;  // device copies of the plan
  Tensor copies_;  // int32 [N, tp]: location of the partial sums of each choice; undefined with tp = 1
};

}  // namespace mcpp
