// Scratch memory of attention on the CPU.
#pragma once
#include "base/integer_math.h"

namespace mcpp::kernel {

inline constexpr i64 kTile = 64;  ///< queries and keys of a tile

/// Row counts of one head. head_dim is the larger of the widths of keys and values.
struct AttentionRows {
  i64 queries, keys, head_dim;

  constexpr i64 query_blocks() const { return ceil_div(queries, kTile); }
  constexpr i64 key_blocks() const { return ceil_div(keys, kTile); }
  /// Returns the elements of a block of up to 64 rows, in the accumulate type.
  constexpr i64 block() const { return kTile * round_up(head_dim, 32); }
};

/// Returns the bytes of scratch memory per thread for the backward pass, which needs more than the forward pass.
/// `element` is the size of the accumulate type.
constexpr i64 attention_backward_bytes(const AttentionRows& rows, i64 element) {
  const i64 blocks = 5 * rows.key_blocks() + 5 * rows.query_blocks() + 2, tiles = 4;
  const i64 vectors = 2 * rows.query_blocks() * kTile;
  return (blocks * rows.block() + tiles * kTile * kTile + vectors) * element;
}

}  // namespace mcpp::kernel
