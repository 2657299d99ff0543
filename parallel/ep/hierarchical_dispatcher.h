// Token dispatch that sends a token once to each node (the normal kernels of DeepEP, "DeepSeek-V3 Technical Report",
// 2024; the dispatcher "flex" of Megatron Core).
#pragma once
#include <vector>

#include "parallel/ep/row_exchange.h"
#include "parallel/ep/token_dispatcher.h"

namespace mcpp {

/// Hierarchical token dispatcher: a token is sent once to the relay of each node that has any of its experts
/// (ExchangeNodes), and from there once to each rank of the node that has any of them, which copies it for each expert.
/// Results take the reverse way: the rank of the experts, the relay and the rank of the token each add what they have,
/// with the weights applied first, and round once. The rows that experts receive, and gradients of weights unless an
/// expert is sharded, are bitwise identical to AllToAllDispatcher; sums have another order.
///
/// In backward, the gradient of a token is sent once in the same way and multiplied by the weights on the rank of the
/// experts. Hence it is encoded only there, as with AllGatherDispatcher.
class HierarchicalDispatcher final : public TokenDispatcher {
 public:
  /// The exchange must have more than one rank.
  HierarchicalDispatcher(const ExpertChoice& choice, const ExpertParallel& parallel);

  Tensor dispatch(const Tensor& tokens, const OverlapFn& overlap_fn) override;
  std::span<const i64> rows() const override { return rows_; }
  Combined combine(const Tensor& y, const Tensor& weights, const OverlapFn& overlap_fn) override;
  Gradients combine_backward(const Tensor& d_out, const Tensor& saved, const Tensor& weights,
                             const RowEncoding& encoding, const OverlapFn& overlap_fn) override;
  Tensor dispatch_backward(const Tensor& d_rows, const OverlapFn& overlap_fn) override;

 private:
  /// Sends rows [T, w], one per token; returns the A rows of the tokens with experts on this rank. `overlap_fn` is
  /// called once, during the exchange between nodes if there is one.
  Tensor send(const Tensor& rows, const OverlapFn& overlap_fn) const;
  /// Returns, for each token, the sum of the rows [A, w] of all ranks. The backward pass of send().
  Tensor return_sums(const Tensor& rows, const OverlapFn& overlap_fn) const;

  std::vector<RowExchange> hops_;  // between nodes, then within a node; each is omitted if there is only one rank
  Tensor row_sources_;             // int32 [M]: arrived row of each expert's row
  Tensor row_slots_;               // int32 [A, k]: expert's rows of each arrived row; -1 = none on this rank
  std::vector<i64> rows_;
};

}  // namespace mcpp
