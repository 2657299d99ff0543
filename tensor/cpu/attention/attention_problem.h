// What the attention kernels of every instruction level share: the arguments as pointers, how the scores are cut into
// tiles, and the scratch memory of one thread.
//
// Scores are computed transposed, S^T [keys, queries], in tiles of 64 x 64 with queries along the vector lanes: then
// the maximum, the sum and the scale of a query are one lane each, and no reduction ever crosses lanes.
#pragma once
#include <algorithm>
#include <array>

#include "tensor/ops/ops.h"

namespace mcpp::kernel {

inline constexpr i64 kTile = 64;  ///< queries and keys of a tile
inline constexpr i64 kHalf = 32;  ///< tiles on the causal diagonal are skipped in squares of this size

constexpr i64 round_up(i64 n, i64 multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

/// The type that attention on elements of type T is computed in, and the type of lse.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// A Heads view with its type known.
template <class T>
struct HeadRows {
  T* data = nullptr;
  i64 head_dim = 0, group_size = 1, seq_stride = 0, batch_stride = 0, group_stride = 0;

  HeadRows() = default;
  explicit HeadRows(const Heads& x)
      : data(x.base.data<T>() + x.offset),
        head_dim(x.head_dim),
        group_size(x.group_size),
        seq_stride(x.seq_stride),
        batch_stride(x.batch_stride),
        group_stride(x.group_stride) {}
  /// A dense tensor [s, b, heads * head_dim].
  HeadRows(const Tensor& x, i64 batch, i64 heads, i64 dim)
      : data(x.data<T>()),
        head_dim(dim),
        group_size(heads),
        seq_stride(batch * heads * dim),
        batch_stride(heads * dim) {}

  T* row(i64 b, i64 head, i64 s) const {
    return data + s * seq_stride + b * batch_stride + head / group_size * group_stride + head % group_size * head_dim;
  }
};

/// Rows that are written: of the operands' type T, or of the wide one, so that sums over several calls lose nothing.
template <class T>
struct ResultRows {
  HeadRows<T> same;
  HeadRows<Wide<T>> wide;  ///< used when `same` has no data

  ResultRows() = default;
  explicit ResultRows(const Heads& x) {
    if (x.base.dtype() == DTypeOf<T>::value)
      same = HeadRows<T>(x);
    else
      wide = HeadRows<Wide<T>>(x);
  }
  /// A dense tensor [s, b, heads * head_dim].
  ResultRows(const Tensor& x, i64 batch, i64 heads, i64 dim) {
    if (x.dtype() == DTypeOf<T>::value)
      same = HeadRows<T>(x, batch, heads, dim);
    else
      wide = HeadRows<Wide<T>>(x, batch, heads, dim);
  }

  /// f(HeadRows) of the type that there is.
  template <class F>
  void visit(F&& f) const {
    same.data ? f(same) : f(wide);
  }
};

template <class T>
struct AttentionProblem {
  HeadRows<T> q, k, v;
  ResultRows<T> out;
  Wide<T>* lse = nullptr;    ///< [batch, heads, queries]
  HeadRows<T> y, dout;       ///< of the backward pass only: what forward gave as `out`, and its gradient
  ResultRows<T> dq, dk, dv;  ///< of the backward pass only
  i64 batch = 0, heads = 0, kv_heads = 0, head_dim = 0;
  i64 queries = 0;
  i64 keys = 0;      ///< rows of keys from the first to the last that any query sees
  i64 all_keys = 0;  ///< that there are
  PositionRanges query_at, key_at;
  const i32* starts = nullptr;  ///< [queries, batch]: where the documents of queries begin; null = at 0
  i64 window = 0;               ///< positions that a query sees; 0 = all
  double scale = 1;
  Dropout dropout;
  bool bf16_tiles = false;  ///< multiply tiles of bf16 with the processor's matrix unit (amx.h)
  i64 parts = 1;            ///< work items that share the query blocks of one key head (forward)

  AttentionProblem(const QkvHeads& x, const AttentionOptions& options)
      : q(x.q),
        k(x.k),
        v(x.v),
        batch(x.q.batch),
        heads(x.q.heads),
        kv_heads(x.k.heads),
        head_dim(x.q.head_dim),
        queries(x.q.seq),
        keys(x.k.seq),
        all_keys(x.k.seq),
        query_at(options.queries.ranges),
        key_at(options.keys),
        starts(options.queries.starts_or_null()),
        window(options.window),
        scale(options.softmax_scale),
        dropout(options.dropout) {
    keys = queries > 0 ? end_of_keys(queries - 1) : 0;
  }

  i64 group() const { return heads / kv_heads; }
  i64 query_blocks() const { return (queries + kTile - 1) / kTile; }
  i64 key_blocks() const { return (keys + kTile - 1) / kTile; }
  i64 padded_dim() const { return round_up(head_dim, 32); }

  // A query sees keys [first_key, end_of_keys). Both never descend from one query to the next.
  i64 first_key(i64 b, i64 query) const {
    i64 first = starts ? starts[query * batch + b] : 0;
    if (window > 0) first = std::max(first, query_at.at(query) - window + 1);
    return first > 0 ? key_at.rows_before(first) : 0;
  }
  i64 end_of_keys(i64 query) const { return std::min(keys, key_at.rows_before(query_at.at(query) + 1)); }
  /// Before this block of 64 no query sees a key.
  i64 first_key_block(i64 b) const { return queries > 0 ? first_key(b, 0) / kTile : 0; }
  /// The blocks of queries from the first that may see a key of the block that starts at `key`.
  i64 first_query_block(i64 key) const { return query_at.rows_before(key_at.at(key)) / kTile; }
};

/// The tile of one head of batch column b that starts at (first_query, first_key).
struct TilePlace {
  i64 b, first_query, first_key;
};

/// The part of a tile that has to be computed.
struct Visible {
  std::array<i64, 2> keys{};  ///< per half of the queries: 0, 32 or 64 keys, counted from the first
  bool masked = false;        ///< some elements inside that part must not be seen

  bool none() const { return keys[0] == 0 && keys[1] == 0; }
};

template <class T>
Visible visible(const AttentionProblem<T>& p, const TilePlace& at) {
  Visible result;
  const i64 end_of_tile = at.first_key + kTile, end_of_queries = std::min(p.queries, at.first_query + kTile);
  for (i64 half = 0; half < 2; ++half) {
    const i64 begin = at.first_query + half * kHalf, end = std::min(end_of_queries, begin + kHalf);
    if (begin >= end || p.first_key(at.b, begin) >= end_of_tile) continue;
    const i64 limit = p.end_of_keys(end - 1) - at.first_key;
    result.keys[static_cast<std::size_t>(half)] = round_up(std::clamp<i64>(limit, 0, kTile), kHalf);
  }
  result.masked = end_of_tile > p.end_of_keys(at.first_query) || p.first_key(at.b, end_of_queries - 1) > at.first_key;
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

/// Calls f(Span) for the ranges of queries of a tile.
template <class F>
void for_query_spans(const Visible& v, F&& f) {
  if (v.keys[0] == v.keys[1]) return f(Span{0, kTile, v.keys[0]});
  if (v.keys[0] > 0) f(Span{0, kHalf, v.keys[0]});
  if (v.keys[1] > 0) f(Span{kHalf, kTile, v.keys[1]});
}

/// Calls f(KeySpan) for the ranges of keys of the same tile.
template <class F>
void for_key_spans(const Visible& v, F&& f) {
  const i64 both = std::min(v.keys[0], v.keys[1]), most = std::max(v.keys[0], v.keys[1]);
  if (both > 0) f(KeySpan{0, both, 0, kTile});
  if (most > both)
    f(v.keys[0] > v.keys[1] ? KeySpan{both, most - both, 0, kHalf} : KeySpan{both, most - both, kHalf, kTile});
}

/// Bump allocation from the memory of one thread, in steps of 64 bytes.
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

/// The matrix product engines, the vector units and AMX, take blocks of up to 64 rows of q, k, v or dout in several
/// forms. Each form has room for 64 * padded_dim numbers of the wide type.
template <class T>
i64 block_elements(const AttentionProblem<T>& p) {
  return kTile * p.padded_dim();
}

}  // namespace mcpp::kernel
