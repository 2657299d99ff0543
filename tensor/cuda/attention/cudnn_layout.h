// How cuDNN sees Heads: as [batch, heads, seq, head_dim] with one stride for each axis.
#pragma once
#include <algorithm>
#include <array>
#include <compare>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/rounding.h"
#include "tensor/ops/ops.h"

namespace mcpp {

/// Sizes and strides (in elements) of four axes.
struct CudnnShape {
  std::array<i64, 4> dims{}, strides{};
  auto operator<=>(const CudnnShape&) const = default;

  /// Row-major.
  static CudnnShape dense(i64 a, i64 b, i64 c, i64 d) { return {{a, b, c, d}, {b * c * d, c * d, d, 1}}; }
  /// With the last two axes exchanged: the transposed matrices.
  CudnnShape transposed() const {
    CudnnShape t = *this;
    std::swap(t.dims[2], t.dims[3]);
    std::swap(t.strides[2], t.strides[3]);
    return t;
  }
};

/// Heads like those of x as a tensor of their own has them, for their shape alone: nothing is at these places.
inline Heads dense_places(const Heads& x) {
  Heads dense = x;
  dense.offset = 0, dense.group_size = x.heads;
  dense.batch_stride = dense.group_stride = x.heads * x.head_dim;
  dense.seq_stride = x.batch * dense.batch_stride;
  return dense;
}

/// The distance between runs of `per` heads, when it is the same everywhere.
inline std::optional<i64> head_stride(const Heads& x, i64 per) {
  if (x.heads == per || x.group_stride == x.group_size * x.head_dim || x.group_size == x.heads) return per * x.head_dim;
  if (x.group_size == per) return x.group_stride;
  return std::nullopt;
}

/// The heads as they are.
inline std::optional<CudnnShape> plain_shape(const Heads& x, i64 /*kv_heads*/) {
  const std::optional<i64> stride = head_stride(x, 1);
  if (!stride) return std::nullopt;
  return CudnnShape{{x.batch, x.heads, x.seq, x.head_dim}, {x.batch_stride, *stride, x.seq_stride, 1}};
}

/// The key heads as part of the batch, each with the query heads that share it: attention never mixes them. That is how
/// a fused QKV tensor with grouped queries, whose query heads are not evenly spaced, has strides.
inline std::optional<CudnnShape> folded_shape(const Heads& x, i64 kv_heads) {
  const i64 per = x.heads / kv_heads;
  if (per > 1 && x.group_size % per != 0) return std::nullopt;
  std::optional<i64> stride = kv_heads == 1 ? x.batch_stride : head_stride(x, per);
  if (!stride || (x.batch > 1 && x.batch_stride != kv_heads * *stride)) return std::nullopt;
  return CudnnShape{{x.batch * kv_heads, per, x.seq, x.head_dim}, {*stride, x.head_dim, x.seq_stride, 1}};
}

/// All of them in the same way, or none when no way fits all. Both ways give the same products.
inline std::vector<CudnnShape> cudnn_shapes(std::span<const Heads* const> all, i64 kv_heads, bool prefer_folded) {
  using ShapeOf = std::optional<CudnnShape> (*)(const Heads&, i64);
  const std::array<ShapeOf, 2> ways = prefer_folded ? std::array<ShapeOf, 2>{folded_shape, plain_shape}
                                                    : std::array<ShapeOf, 2>{plain_shape, folded_shape};
  for (const ShapeOf shape_of : ways) {
    std::vector<CudnnShape> shapes;
    for (const Heads* x : all) {
      if (const auto shape = shape_of(*x, kv_heads)) shapes.push_back(*shape);
    }
    if (shapes.size() == all.size()) return shapes;
  }
  return {};
}

/// What a plan is compiled for.
struct AttentionCase {
  bool backward = false, causal = false;
  std::vector<CudnnShape> shapes = {};  ///< of q, k, v, out; backward: and dout, dq, dk, dv
  DType dtype = DType::BF16;            ///< or fp16
  bool accumulates = false;             ///< backward: dq is gathered by atomic additions, in no fixed order
  auto operator<=>(const AttentionCase&) const = default;
};

/// The backward pass's fixed order of sums costs memory for all probabilities, in the narrow type. Samples (and,
/// folded, key heads) therefore go through it in parts that need about this much, and long sequences in blocks.
inline constexpr i64 kMostProbabilities = i64{1} << 30;
/// What the kernels pad queries and keys to.
inline constexpr i64 kAttentionTile = 128;

/// What the probabilities of one part of q, along axis 0, take.
inline i64 probability_bytes(const CudnnShape& q) {
  const i64 padded = round_up(q.dims[2], kAttentionTile);
  return q.dims[1] * padded * padded * 2;
}

/// Along axis 0 of q, the most at a time that divides all of it and keeps within kMostProbabilities; at least 1.
inline i64 backward_part(const CudnnShape& q) {
  i64 part = q.dims[0];
  while (part > 1 && (q.dims[0] % part != 0 || part * probability_bytes(q) > kMostProbabilities)) --part;
  return part;
}

/// Along axis 2 of q, the most queries, and keys, at a time whose probabilities keep within kMostProbabilities: all, or
/// whole tiles that divide all. 0 where there are none.
inline i64 backward_block(const CudnnShape& q) {
  const i64 most = std::max<i64>(1, q.dims[2] / kAttentionTile);
  for (i64 blocks = 1; blocks <= most; ++blocks) {
    const i64 rows = q.dims[2] / blocks;
    CudnnShape block = q;
    block.dims[2] = rows;
    const bool is_even = blocks == 1 || (rows * blocks == q.dims[2] && rows % kAttentionTile == 0);
    if (is_even && probability_bytes(block) <= kMostProbabilities) return rows;
  }
  return 0;
}

}  // namespace mcpp
