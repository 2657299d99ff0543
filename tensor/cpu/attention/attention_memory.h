// What attention computes in on a CPU, beside its arguments.
#pragma once
#include "base/rounding.h"

namespace mcpp::kernel {

inline constexpr i64 kTile = 64;  ///< queries and keys of a tile

/// The rows of one head.
struct AttentionRows {
  i64 queries, keys, head_dim;

  constexpr i64 query_blocks() const { return ceil_div(queries, kTile); }
  constexpr i64 key_blocks() const { return ceil_div(keys, kTile); }
  /// Of up to 64 of them, in numbers of the wide type.
  constexpr i64 block() const { return kTile * round_up(head_dim, 32); }
};

/// Bytes that each thread needs for the gradients, which need more than the result does. `element`: size of the wide
/// type.
constexpr i64 attention_backward_bytes(const AttentionRows& rows, i64 element) {
  const i64 blocks = 5 * rows.key_blocks() + 5 * rows.query_blocks() + 2, tiles = 4;
  const i64 vectors = 2 * rows.query_blocks() * kTile;
  return (blocks * rows.block() + tiles * kTile * kTile + vectors) * element;
}

}  // namespace mcpp::kernel
