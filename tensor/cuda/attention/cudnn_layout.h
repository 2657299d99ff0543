// Conversion of Heads to cuDNN's layout: [batch, heads, seq, head_dim] with one stride per axis.
#pragma once
#include <algorithm>
#include <array>
#include <compare>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/integer_math.h"
#include "tensor/ops/ops.h"

namespace mcpp {

/// Sizes and strides (in elements) of four axes.
struct CudnnShape {
  std::array<i64, 4> dims{}, strides{};
  auto operator<=>(const CudnnShape&) const = default;

  /// Returns a row-major shape.
  static CudnnShape dense(i64 a, i64 b, i64 c, i64 d) { return {{a, b, c, d}, {b * c * d, c * d, d, 1}}; }
  /// Exchanges the last two axes: the transposed matrices.
  CudnnShape transposed() const {
    CudnnShape t = *this;
    std::swap(t.dims[2], t.dims[3]);
    std::swap(t.strides[2], t.strides[3]);
    return t;
  }
};

/// Returns the layout of a dense tensor with the same heads as x. Only its shape is valid; it has no elements.
inline Heads dense_heads_layout(const Heads& x) {
  Heads dense = x;
  dense.offset = 0, dense.group_size = x.heads;
  dense.batch_stride = dense.group_stride = x.heads * x.head_dim;
  dense.seq_stride = x.batch * dense.batch_stride;
  return dense;
}

/// Returns the stride between runs of `per` heads if it is uniform.
inline std::optional<i64> head_stride(const Heads& x, i64 per) {
  if (x.heads == per || x.group_stride == x.group_size * x.head_dim || x.group_size == x.heads) return per * x.head_dim;
  if (x.group_size == per) return x.group_stride;
  return std::nullopt;
}

/// Returns the shape of the heads without folding.
inline std::optional<CudnnShape> plain_shape(const Heads& x, i64 /*kv_heads*/) {
  const std::optional<i64> stride = head_stride(x, 1);
  if (!stride) return std::nullopt;
  return CudnnShape{{x.batch, x.heads, x.seq, x.head_dim}, {x.batch_stride, *stride, x.seq_stride, 1}};
}

/// Folds the key heads into the batch, each with the query heads that share it; attention never mixes them. This gives
/// uniform strides to a fused QKV tensor with grouped queries, whose query heads are not evenly spaced.
inline std::optional<CudnnShape> folded_shape(const Heads& x, i64 kv_heads) {
  const i64 per = x.heads / kv_heads;
  if (per > 1 && x.group_size % per != 0) return std::nullopt;
  std::optional<i64> stride = kv_heads == 1 ? x.batch_stride : head_stride(x, per);
  if (!stride || (x.batch > 1 && x.batch_stride != kv_heads * *stride)) return std::nullopt;
  return CudnnShape{{x.batch * kv_heads, per, x.seq, x.head_dim}, {*stride, x.head_dim, x.seq_stride, 1}};
}

/// Returns the shapes of all Heads from plain_shape() or folded_shape(), or an empty list if neither supports all of
/// them. Attention is the same with both.
inline std::vector<CudnnShape> cudnn_shapes(std::span<const Heads* const> all, i64 kv_heads, bool prefers_folded) {
  using ShapeOf = std::optional<CudnnShape> (*)(const Heads&, i64);
  const std::array<ShapeOf, 2> methods = prefers_folded ? std::array<ShapeOf, 2>{folded_shape, plain_shape}
                                                        : std::array<ShapeOf, 2>{plain_shape, folded_shape};
  for (const ShapeOf shape_of : methods) {
    std::vector<CudnnShape> shapes;
    for (const Heads* x : all) {
      if (const auto shape = shape_of(*x, kv_heads)) shapes.push_back(*shape);
    }
    if (shapes.size() == all.size()) return shapes;
  }
  return {};
}

/// Attention case: the key of a compiled plan.
struct AttentionCase {
  bool is_backward = false, is_causal = false;
  std::vector<CudnnShape> shapes = {};  ///< shapes of q, k, v, out and, for backward, dout, dq, dk, dv
  DType dtype = DType::BF16;            ///< BF16 or F16
  bool accumulates = false;             ///< backward: dq is accumulated by atomic additions, in no fixed order
  auto operator<=>(const AttentionCase&) const = default;
};

/// Memory limit for probabilities. The backward pass with a fixed order of sums stores all probabilities, in low
/// precision. Samples (and, if folded, key heads) are therefore processed in parts within this limit, and long
/// sequences in blocks.
inline constexpr i64 kMaxProbabilityBytes = i64{1} << 30;
/// Tile size to which the kernels pad queries and keys.
inline constexpr i64 kAttentionTile = 128;

/// Returns the size of the probabilities of one part of q, along axis 0.
inline i64 probability_bytes(const CudnnShape& q) {
  const i64 padded = round_up(q.dims[2], kAttentionTile);
  return q.dims[1] * padded * padded * 2;
}

/// Returns the largest part along axis 0 of q that divides it and stays within kMaxProbabilityBytes; at least 1.
inline i64 backward_part(const CudnnShape& q) {
  i64 part = q.dims[0];
  while (part > 1 && (q.dims[0] % part != 0 || part * probability_bytes(q) > kMaxProbabilityBytes)) --part;
  return part;
}

/// Returns the largest block of queries and keys along axis 2 of q whose probabilities stay within
/// kMaxProbabilityBytes: all rows, or a multiple of kAttentionTile that divides their number. Returns 0 if there is
/// none.
inline i64 backward_block(const CudnnShape& q) {
  const i64 max_blocks = std::max<i64>(1, q.dims[2] / kAttentionTile);
  for (i64 blocks = 1; blocks <= max_blocks; ++blocks) {
    const i64 rows = q.dims[2] / blocks;
    CudnnShape block = q;
    block.dims[2] = rows;
    const bool is_even = blocks == 1 || (rows * blocks == q.dims[2] && rows % kAttentionTile == 0);
    if (is_even && probability_bytes(block) <= kMaxProbabilityBytes) return rows;
  }
  return 0;
}

}  // namespace mcpp
