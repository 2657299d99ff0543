// Attention of some heads over all positions, in place of all heads over some positions: ranks exchange the one for the
// other before it and back after it. Jacobs et al., "DeepSpeed Ulysses", 2023.
#pragma once
#include "comm/communicator.h"
#include "parallel/cp/qkv.h"

namespace mcpp {

/// The n ranks of `group` hold positions as SampleCut says of ranks that exchange heads: each an equal part of the
/// same pieces, of which there are so many `runs`. After the exchange each has all pieces whole, [n s, b, ...], of its
/// part of the heads; query groups go with their heads, and where there are fewer groups than ranks, several ranks get
/// the same one.
///
/// Sent per rank, for q, k and v bytes of queries, keys and values: (n - 1) / n of (q + k + v) and of the attention's
/// output q, once forward and once backward; with fewer groups than ranks k and v count n / groups times, and their
/// gradients are sent in the wide type.
class HeadExchange {
 public:
  /// query_groups: that this rank has before the exchange.
  HeadExchange(Communicator& group, i64 query_groups) : group_(group), query_groups_(query_groups) {}

  /// Whether so many ranks can exchange the heads and query groups that each has before.
  static constexpr bool is_possible(i64 ranks, i64 heads, i64 query_groups) {
    return heads % ranks == 0 && (query_groups % ranks == 0 || ranks % query_groups == 0);
  }

  /// Whether several ranks get the same query group: then keys and values are apart from queries.
  bool shares_groups() const { return query_groups_ % group_.size() != 0; }

  Qkv to_heads(const Qkv& mine, i64 runs);
  /// Uninitialised: what the gradient of to_heads(mine) is to be written to.
  Qkv gradient_of_heads(const Qkv& exchanged) const;
  /// `mine`, of the shapes that there were before: the gradient, from that of what they were exchanged for.
  void to_positions(const Qkv& gradient, Qkv& mine, i64 runs);

  /// out [s, b, heads * head_dim], or its gradient, exchanged and back.
  Tensor to_heads(const Tensor& out, i64 runs);
  Tensor to_positions(const Tensor& out, i64 runs);

  /// The first of this rank's heads after the exchange, of `heads` before.
  i64 first_head(i64 heads) const { return group_.rank() * (heads / group_.size()); }

 private:
  /// Column i of `columns`, views of [s, b, n, width], goes to rank i: [n s, b, width].
  Tensor give(const Heads& columns, i64 runs);
  /// Back.
  void take_back(const Tensor& exchanged, Heads& columns, i64 runs);

  Communicator& group_;
  i64 query_groups_;
};

}  // namespace mcpp
