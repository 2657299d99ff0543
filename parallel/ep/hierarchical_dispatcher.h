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
class HierarchicalDispatcher final : public OncePerRankDispatcher {
 public:
  /// The exchange must have more than one rank.
  HierarchicalDispatcher(const ExpertChoice& choice, const ExpertParallel& parallel);

 private:
  /// Calls `overlap_fn` during the exchange between nodes if there is one.
  Tensor send(const Tensor& rows, const OverlapFn& overlap_fn) const override;
  Tensor return_sums(const Tensor& rows, const OverlapFn& overlap_fn) const override;

  std::vector<RowExchange> hops_;  // between nodes, then within a node; each is omitted if there is only one rank
};

}  // namespace mcpp
