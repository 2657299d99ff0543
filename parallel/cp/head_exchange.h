// Head exchange of context parallelism: before attention, an all-to-all converts all heads of some positions to some
// heads of all positions; after attention, it is reversed. Jacobs et al., "DeepSpeed Ulysses", 2023.
#pragma once
#include "comm/communicator.h"
#include "tensor/ops/ops.h"

namespace mcpp {

// Queries, keys and values of one microbatch on one rank, as returned by the projection.

/// Megatron's fused tensor `queries` [s, b, groups, q + 2, head_dim] for the groups of this rank. If the rank has only
/// some heads of one group, whose keys and values are replicated, `queries` is [s, b, heads, head_dim] and
/// `keys_values` is [s, b, 2, head_dim].
struct Qkv {
  Tensor queries, keys_values;

  bool is_fused() const { return !keys_values.defined(); }
  QkvHeads heads() const;
  /// Returns uninitialized tensors of the same shapes.
  Qkv like() const;
};

/// All-to-all between positions and heads. The n ranks of `group` each hold an equal part of every chunk
/// (SamplePartition); there are `runs` chunks. After the exchange each rank has 1/n of the heads for complete chunks,
/// [n s, b, ...]. Query groups are sent with their heads; with fewer groups than ranks, several ranks receive the same
/// group.
///
/// Traffic per rank, for q, k and v bytes of queries, keys and values: (n - 1) / n of (q + k + v) and of the attention
/// output q, once in forward and once in backward. With fewer groups than ranks, k and v count n / groups times, and
/// their gradients are sent in the accumulation type.
class HeadExchange {
 public:
  /// `query_groups` is the number on this rank before the exchange.
  HeadExchange(Communicator& group, i64 query_groups) : group_(group), query_groups_(query_groups) {}

  /// Returns true if `ranks` ranks can exchange `heads` heads and `query_groups` query groups per rank.
  static constexpr bool is_possible(i64 ranks, i64 heads, i64 query_groups) {
    return heads % ranks == 0 && (query_groups % ranks == 0 || ranks % query_groups == 0);
  }

  /// Returns true if several ranks receive the same query group. Keys and values are then separate from queries.
  bool shares_groups() const { return query_groups_ % group_.size() != 0; }

  Qkv to_heads(const Qkv& local, i64 runs);
  /// Returns an uninitialized tensor for the gradient of the result of to_heads().
  Qkv gradient_of_heads(const Qkv& exchanged) const;
  /// Writes the gradient of the tensors before the exchange to `local`, given the gradient of the exchanged tensors.
  void to_positions(const Qkv& gradient, Qkv& local, i64 runs);

  /// Exchange out [s, b, heads * head_dim] or its gradient, and back.
  Tensor to_heads(const Tensor& out, i64 runs);
  Tensor to_positions(const Tensor& out, i64 runs);

  /// Returns this rank's first head after the exchange, given `heads` heads before it.
  i64 first_head(i64 heads) const { return group_.rank() * (heads / group_.size()); }

 private:
  /// Sends column i of `columns`, views of [s, b, n, width], to rank i; returns [n s, b, width].
  Tensor scatter_columns(const Heads& columns, i64 runs);
  /// Inverse of scatter_columns().
  void gather_columns(const Tensor& exchanged, Heads& columns, i64 runs);

  Communicator& group_;
  i64 query_groups_;
};

}  // namespace mcpp
