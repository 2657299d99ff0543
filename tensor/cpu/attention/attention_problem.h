// Definitions shared by the attention kernels of every instruction set: the partition of scores into tiles, and the
// scratch memory of one thread.
//
// Scores are computed transposed, S^T [keys, queries], in tiles of 64 x 64 with queries along the vector lanes: the
// maximum, sum and scale of a query are then one lane each, and no reduction crosses lanes.
#pragma once
#include <algorithm>
#include <array>

#include "tensor/cpu/attention/attention_memory.h"
#include "tensor/cpu/simd/bf16_path.h"
#include "tensor/ops/attention_arguments.h"

namespace mcpp::kernel {

inline constexpr i64 kHalf = 32;  ///< tiles on the causal diagonal are skipped in squares of this size

/// Width of the queries and keys of a head, or of the values; and this width rounded up for tiles.
struct HeadWidth {
  i64 dim, padded;
  explicit constexpr HeadWidth(i64 width) : dim(width), padded(round_up(width, 32)) {}
};

template <class T>
struct AttentionProblem : AttentionArguments<T, AccumulateType<T>> {
  using Arguments = AttentionArguments<T, AccumulateType<T>>;
  using Arguments::queries, Arguments::keys, Arguments::query_at, Arguments::key_at, Arguments::head_dim;

  i64 all_keys = 0;  ///< total number of keys; `keys` spans only the keys that some query sees
  double scale = 1;
  double soft_cap = 0;
  Dropout dropout;
  Bf16Path bf16_path = Bf16Path::Widen;
  i64 parts = 1;  ///< work items that share the query blocks of one key head (forward)

  AttentionProblem(const QkvHeads& x, const AttentionOptions& options, const AttentionResult& result)
      : all_keys(x.k.seq), scale(options.softmax_scale), soft_cap(options.soft_cap), dropout(options.dropout) {
    Arguments::template read<T>(x, options, result);
    keys = queries > 0 ? Arguments::end_of_keys(queries - 1) : 0;
  }

  /// Returns the factor that converts elements of a tile to scores. The elements are dot products of queries and keys,
  /// or the output of cap_tile().
  double score_factor() const { return soft_cap > 0 ? soft_cap : scale; }
  AttentionRows rows() const {
    return {.queries = queries, .keys = keys, .head_dim = std::max(head_dim, Arguments::v.head_dim)};
  }
  i64 query_blocks() const { return rows().query_blocks(); }
  i64 key_blocks() const { return rows().key_blocks(); }
  HeadWidth key_width() const { return HeadWidth(head_dim); }
  HeadWidth value_width() const { return HeadWidth(Arguments::v.head_dim); }
  /// Returns the first block of 64 keys that any query sees.
  i64 first_key_block(i64 b) const { return queries > 0 ? Arguments::first_key(b, 0) / kTile : 0; }
  /// Returns the first block of queries that may see a key of the block that starts at `key`.
  i64 first_query_block(i64 key) const { return query_at.rows_before(key_at.at(key)) / kTile; }
};

/// Tile of one head of batch column b that starts at (first_query, first_key).
struct TileOrigin {
  i64 b, first_query, first_key;
};

/// Part of a tile that must be computed.
struct Visible {
  std::array<i64, 2> keys{};  ///< number of visible keys for each half of the queries: the first 0, 32 or 64
  bool is_masked = false;     ///< some elements inside the visible part must be masked

  bool is_empty() const { return keys[0] == 0 && keys[1] == 0; }
};

template <class T>
Visible visible(const AttentionProblem<T>& p, const TileOrigin& at) {
  Visible result;
  const i64 end_of_tile = at.first_key + kTile, end_of_queries = std::min(p.queries, at.first_query + kTile);
  for (i64 half = 0; half < 2; ++half) {
    const i64 begin = at.first_query + half * kHalf, end = std::min(end_of_queries, begin + kHalf);
    if (begin >= end || p.first_key(at.b, begin) >= end_of_tile) continue;
    const i64 limit = p.end_of_keys(end - 1) - at.first_key;
    result.keys[static_cast<std::size_t>(half)] = round_up(std::clamp<i64>(limit, 0, kTile), kHalf);
  }
  result.is_masked =
      end_of_tile > p.end_of_keys(at.first_query) || p.first_key(at.b, end_of_queries - 1) > at.first_key;
  return result;
}

/// Queries [begin, end) of a tile, which see its first `depth` keys.
struct Span {
  i64 begin = 0, end = 0;
  i64 depth = 0;
};

/// Keys [first_key, first_key + keys) of a tile, which are seen by its queries [begin, end).
struct KeySpan {
  i64 first_key = 0, keys = 0;
  i64 begin = 0, end = 0;
};

/// Calls f(Span) for the query ranges of a tile.
template <class F>
void for_query_spans(const Visible& v, F&& f) {
  if (v.keys[0] == v.keys[1]) return f(Span{0, kTile, v.keys[0]});
  if (v.keys[0] > 0) f(Span{0, kHalf, v.keys[0]});
  if (v.keys[1] > 0) f(Span{kHalf, kTile, v.keys[1]});
}

/// Calls f(KeySpan) for the key ranges of a tile.
template <class F>
void for_key_spans(const Visible& v, F&& f) {
  const i64 common = std::min(v.keys[0], v.keys[1]), longest = std::max(v.keys[0], v.keys[1]);
  if (common > 0) f(KeySpan{0, common, 0, kTile});
  if (longest > common)
    f(v.keys[0] > v.keys[1] ? KeySpan{common, longest - common, 0, kHalf}
                            : KeySpan{common, longest - common, kHalf, kTile});
}

/// Bump allocator in the memory of one thread, in steps of 64 bytes.
class Scratch {
 public:
  explicit Scratch(std::byte* memory) : next_(memory) {}
  template <class E>
  E* take(i64 count) {
    E* result = reinterpret_cast<E*>(next_);
    next_ += round_up(count * static_cast<i64>(sizeof(E)), 64);
    return result;
  }

 private:
  std::byte* next_;
};

/// Returns the number of elements of a packed block: up to 64 rows of q, k, v or dout in several forms, each with space
/// for 64 rows of the larger HeadWidth::padded in the accumulate type.
template <class T>
i64 block_elements(const AttentionProblem<T>& p) {
  return p.rows().block();
}

// Attention functions for an AttentionProblem, and their work items. An item may run on any thread, with its own
// scratch memory.

/// Computes ops::attention (writes out, lse) and ops::attention_backward (writes dq, dk, dv) for problem `p`, whose
/// members must be set.
template <class T>
void attention_forward(AttentionProblem<T> p, CpuDevice& device);
template <class T>
void attention_backward(const AttentionProblem<T>& p, CpuDevice& device);

/// Processes every p.parts-th query block, starting at block item % p.parts, of key head item / p.parts % kv_heads in
/// batch column item / p.parts / kv_heads.
void attention_forward_item(const AttentionProblem<float>& p, i64 item, std::byte* memory);
void attention_forward_item(const AttentionProblem<double>& p, i64 item, std::byte* memory);
void attention_forward_item(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory);
void attention_forward_item(const AttentionProblem<Float16>& p, i64 item, std::byte* memory);
/// Returns the required size of `memory`, which must be 64-byte aligned.
template <class T>
i64 attention_forward_bytes(const AttentionProblem<T>& p);

/// Processes key head item % kv_heads in batch column item / kv_heads, with all query heads that share it. `memory` has
/// attention_backward_bytes() bytes (attention_memory.h).
void attention_backward_item(const AttentionProblem<float>& p, i64 item, std::byte* memory);
void attention_backward_item(const AttentionProblem<double>& p, i64 item, std::byte* memory);
void attention_backward_item(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory);
void attention_backward_item(const AttentionProblem<Float16>& p, i64 item, std::byte* memory);

/// Processes query head item % heads in batch column item / heads, without tiles. For a small number of queries,
/// without dropout.
void attention_decode_item(const AttentionProblem<float>& p, i64 item, std::byte* memory);
void attention_decode_item(const AttentionProblem<double>& p, i64 item, std::byte* memory);
void attention_decode_item(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory);
void attention_decode_item(const AttentionProblem<Float16>& p, i64 item, std::byte* memory);
template <class T>
i64 attention_decode_bytes(const AttentionProblem<T>& p);

}  // namespace mcpp::kernel
