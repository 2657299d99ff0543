// All-gather token dispatcher: all ranks of the exchange receive all tokens, process those of their experts, and
// reduce-scatter the results. It uses two simple collectives but sends more bytes than all-to-all, unless the number of
// experts per token is close to the number of ranks.
#pragma once
#include "parallel/ep/dispatch_plan.h"
#include "parallel/ep/token_dispatcher.h"

namespace mcpp {

class AllGatherDispatcher final : public TokenDispatcher {
 public:
  /// The exchange must have more than one rank.
  AllGatherDispatcher(const ExpertChoice& choice, const ExpertParallel& parallel);

  Tensor dispatch(const Tensor& tokens, const OverlapFn& overlap_fn) override;
  std::span<const i64> rows() const override { return plan_.rows; }
  Combined combine(const Tensor& y, const Tensor& weights) override;
  Gradients combine_backward(const Tensor& d_out, const Tensor& kept, const Tensor& weights) override;
  Tensor dispatch_backward(const Tensor& d_rows, const OverlapFn& overlap_fn) override;

 private:
  /// Gathers the rows of all ranks.
  Tensor all(
      const Tensor& own, const OverlapFn& overlap_fn = [] {}) const;
  /// Returns this rank's part of the sum over ranks.
  Tensor reduce_scatter_rows(
      const Tensor& parts, const OverlapFn& overlap_fn = [] {}) const;

  ExpertParallel parallel_;
  DispatchPlan plan_;  // tokens of all ranks, restricted to this rank's experts
  Tensor tokens_, slots_;
};

}  // namespace mcpp
