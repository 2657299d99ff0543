// Each token is sent to the ranks that have its experts, and what they make of it comes back. Where an expert's width
// is cut over several ranks each of them gets the token and gives a part of the sum.
#pragma once
#include "parallel/ep/dispatch_plan.h"
#include "parallel/ep/token_dispatcher.h"

namespace mcpp {

class AllToAllDispatcher final : public TokenDispatcher {
 public:
  AllToAllDispatcher(const ExpertChoice& choice, const ExpertParallel& parallel);

  Tensor dispatch(const Tensor& tokens, const Meanwhile& meanwhile) override;
  std::span<const i64> rows() const override { return plan_.rows; }
  Combined combine(const Tensor& y, const Tensor& weights) override;
  Gradients combine_backward(const Tensor& d_out, const Tensor& kept, const Tensor& weights) override;
  Tensor dispatch_backward(const Tensor& d_rows, const Meanwhile& meanwhile) override;

 private:
  /// Rows [N, h] of choices, in the order of tokens_, to where their experts are; [M, h] by expert.
  Tensor to_experts(const Tensor& choices, const Meanwhile& meanwhile) const;
  /// And back, where ranks share an expert's width summed over them: each is the backward of the other.
  Tensor from_experts(const Tensor& rows, const Meanwhile& meanwhile) const;
  /// Parts of rows as parts of elements, one for each rank of the exchange.
  std::vector<Part> sent(i64 width, i64 copy_stride) const;
  std::vector<Part> received(i64 width) const;

  ExpertParallel parallel_;
  DispatchPlan plan_;
  Tensor tokens_, slots_, by_expert_, by_rank_;  // on the device, as plan_ has them
  Tensor copies_;  // int32 [N, tp]: where the parts of each choice's sum come to lie; undefined without
};

}  // namespace mcpp
