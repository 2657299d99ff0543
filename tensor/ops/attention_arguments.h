// Kernel arguments of ops::attention for all devices: row pointers and the range of keys that each query sees.
// Functions are constexpr only so that device code can call them.
#pragma once
#include <algorithm>

#include "tensor/dtype.h"
#include "tensor/ops/ops.h"

namespace mcpp {

/// Rows of heads in memory, like Heads but with a static element type.
template <class E>
struct HeadRows {
  E* data = nullptr;
  i64 head_dim = 0, group_size = 1, seq_stride = 0, batch_stride = 0, group_stride = 0;

  constexpr E* row(i64 b, i64 head, i64 s) const {
    return data + s * seq_stride + b * batch_stride + head / group_size * group_stride + head % group_size * head_dim;
  }
};

/// Converts a Heads view. E is the device type that corresponds to T.
template <class T, class E = T>
HeadRows<E> head_rows(const Heads& x) {
  return {.data = reinterpret_cast<E*>(x.base.data<T>() + x.offset),
          .head_dim = x.head_dim,
          .group_size = x.group_size,
          .seq_stride = x.seq_stride,
          .batch_stride = x.batch_stride,
          .group_stride = x.group_stride};
}

/// Output rows in the type of the operands, or in the accumulate type to avoid rounding in sums over several calls.
template <class E, class W>
struct ResultRows {
  HeadRows<E> low_precision;
  HeadRows<W> accumulate;  ///< used if `low_precision` has no data

  /// Calls f with the HeadRows that has data.
  template <class F>
  constexpr void visit(F&& f) const {
    low_precision.data ? f(low_precision) : f(accumulate);
  }
};

template <class T, class E = T>
ResultRows<E, AccumulateType<T>> result_rows(const Heads& x) {
  if (x.base.dtype() == DTypeOf<T>::value) return {head_rows<T, E>(x), {}};
  return {{}, head_rows<AccumulateType<T>>(x)};
}

/// Arguments of the attention kernels. E is the element type on the device, and W the accumulate type.
template <class E, class W>
struct AttentionArguments {
  HeadRows<E> q, k, v;
  W* lse = nullptr;             ///< [batch, heads, queries]
  ResultRows<E, W> out;         ///< forward pass only
  HeadRows<E> y, dout;          ///< backward pass only: the forward pass's `out`, and its gradient
  ResultRows<E, W> dq, dk, dv;  ///< backward pass only
  i64 batch = 0, heads = 0, kv_heads = 0, head_dim = 0, queries = 0, keys = 0;
  PositionRanges query_at, key_at;
  const i32* starts = nullptr;  ///< [queries, batch]: start position of each query's document; null = 0
  i64 window = 0;               ///< number of positions a query sees; 0 = all

  /// Sets the arguments common to both passes. T is the host type that corresponds to E.
  template <class T>
  void read(const QkvHeads& x, const AttentionOptions& options, const AttentionResult& result) {
    q = head_rows<T, E>(x.q), k = head_rows<T, E>(x.k), v = head_rows<T, E>(x.v);
    lse = result.lse.data<W>();
    batch = x.q.batch, heads = x.q.heads, kv_heads = x.k.heads, head_dim = x.q.head_dim;
    queries = x.q.seq, keys = x.k.seq;
    query_at = options.queries.ranges, key_at = options.keys;
    starts = options.queries.starts_or_null();
    window = options.window;
  }
  template <class T>
  void read_forward(AttentionResult& result) {
    out = result_rows<T, E>(dense_heads(result.out, heads));
  }
  template <class T>
  void read_backward(const Tensor& gradient, const AttentionResult& result, QkvHeads& dx) {
    y = head_rows<T, E>(dense_heads(result.out, heads)), dout = head_rows<T, E>(dense_heads(gradient, heads));
    dq = result_rows<T, E>(dx.q), dk = result_rows<T, E>(dx.k), dv = result_rows<T, E>(dx.v);
  }

  constexpr i64 group() const { return heads / kv_heads; }
  // A query sees keys [first_key, end_of_keys), or no keys if first_key >= end_of_keys. Both bounds are non-decreasing
  // in the query.
  constexpr i64 first_key(i64 b, i64 query) const {
    i64 first = starts ? starts[query * batch + b] : 0;
    if (window > 0) first = std::max(first, query_at.at(query) - window + 1);
    return first > 0 ? key_at.rows_before(first) : 0;
  }
  constexpr i64 end_of_keys(i64 query) const { return std::min(keys, key_at.rows_before(query_at.at(query) + 1)); }
  /// Returns the offset of a head's first query in lse.
  constexpr i64 lse_row(i64 b, i64 head) const { return (b * heads + head) * queries; }
};

}  // namespace mcpp
