// Computes softmax(scale q k^T) v in tiles, with a running maximum and sum per query: Dao et al., "FlashAttention",
// 2022.
#include "tensor/cpu/attention/attention_problem.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/attention/attention_forward.cpp"
#include "hwy/foreach_target.h"
//
#include "tensor/cpu/attention/attention_engines-inl.h"
#include "tensor/cpu/attention/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::kernel::HWY_NAMESPACE {

/// Running softmax of 64 queries over the keys seen so far. In powers of two: largest = max(scale log2(e) score).
template <class R>
struct Softmax {
  alignas(64) R largest[kTile];
  alignas(64) R sum[kTile];
  alignas(64) R shrink[kTile];  ///< factor of the last tile for the weights of all earlier ones

  Softmax() {
    std::fill_n(largest, kTile, std::numeric_limits<R>::lowest());
    std::fill_n(sum, kTile, R{0});
  }

  /// Adds the scores [span.depth, queries of the span] and turns them into exp(score - largest). `to_log2` > 0. Returns
  /// true if any shrink differs from 1.
  bool add(const Span& span, R to_log2, R* s) {
    const hn::ScalableTag<R> d;
    bool shrunk = false;
    for (i64 q = span.begin; q < span.end; q += static_cast<i64>(hn::Lanes(d))) {
      shrunk |= add_lanes(d, span.depth, to_log2, s + q, largest + q, sum + q, shrink + q);
    }
    return shrunk;
  }

 private:
  /// Processes four rows at a time, to overlap the latencies of max and add.
  template <class D>
  static HWY_INLINE bool add_lanes(D d, i64 rows, R to_log2, R* s, R* largest, R* sum, R* shrink) {
    auto m0 = hn::LoadU(d, s), m1 = m0, m2 = m0, m3 = m0;
    for (i64 k = 0; k < rows; k += 4) {
      const R* row = s + k * kTile;
      m0 = hn::Max(m0, hn::LoadU(d, row)), m1 = hn::Max(m1, hn::LoadU(d, row + kTile));
      m2 = hn::Max(m2, hn::LoadU(d, row + 2 * kTile)), m3 = hn::Max(m3, hn::LoadU(d, row + 3 * kTile));
    }
    const auto factor = hn::Set(d, to_log2);
    const auto before = hn::LoadU(d, largest);
    const auto now = hn::Max(before, hn::Mul(factor, hn::Max(hn::Max(m0, m1), hn::Max(m2, m3))));
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    const auto replace = [&](R* at) HWY_ATTR {
      const auto p = exp2_of(d, hn::MulSub(hn::LoadU(d, at), factor, now));
      hn::StoreU(p, d, at);
      return p;
    };
    for (i64 k = 0; k < rows; k += 4) {
      R* row = s + k * kTile;
      s0 = hn::Add(s0, replace(row)), s1 = hn::Add(s1, replace(row + kTile));
      s2 = hn::Add(s2, replace(row + 2 * kTile)), s3 = hn::Add(s3, replace(row + 3 * kTile));
    }
    const auto factor_before = exp2_of(d, hn::Sub(before, now));
    hn::StoreU(now, d, largest);
    hn::StoreU(factor_before, d, shrink);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, sum), factor_before, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))), d, sum);
    return !hn::AllTrue(d, hn::Eq(factor_before, hn::Set(d, R{1})));
  }
};

/// Computes x[rows, queries of the span] *= factors[queries].
template <class R>
void scale_queries(const Span& span, i64 rows, const R* factors, R* x) {
  const hn::ScalableTag<R> d;
  for (i64 r = 0; r < rows; ++r, x += kTile) {
    for (i64 q = span.begin; q < span.end; q += static_cast<i64>(hn::Lanes(d))) {
      hn::StoreU(hn::Mul(hn::LoadU(d, x + q), hn::LoadU(d, factors + q)), d, x + q);
    }
  }
}

/// Computes x *= keep, over the queries and keys of the span.
template <class R>
void drop(const Span& span, const R* keep, R* x) {
  const hn::ScalableTag<R> d;
  for (i64 k = 0; k < span.depth; ++k, x += kTile, keep += kTile) {
    for (i64 q = span.begin; q < span.end; q += static_cast<i64>(hn::Lanes(d))) {
      hn::StoreU(hn::Mul(hn::LoadU(d, x + q), hn::LoadU(d, keep + q)), d, x + q);
    }
  }
}

/// Packed blocks of keys and values of one key head, and the tiles of one query block.
template <class Engine, class T>
struct ForwardScratch {
  using P = typename Engine::Packed;
  using R = AccumulateType<T>;
  P *k_rows, *v_left_t, *rows, *q_right_t, *tile;
  R *scores, *out_t, *out_rows;
  R* keep;

  ForwardScratch(const AttentionProblem<T>& p, Scratch scratch)
      : k_rows(scratch.take<P>(p.key_blocks() * block_elements(p))),
        v_left_t(scratch.take<P>(p.key_blocks() * block_elements(p))),
        rows(scratch.take<P>(block_elements(p))),
        q_right_t(scratch.take<P>(block_elements(p))),
        tile(scratch.take<P>(kTile * kTile)),
        scores(scratch.take<R>(kTile * kTile)),
        out_t(scratch.take<R>(block_elements(p))),
        out_rows(scratch.take<R>(block_elements(p))),
        keep(scratch.take<R>(p.dropout.p > 0 ? kTile * kTile : 0)) {}
};

template <class Engine, class T>
void pack_keys(const AttentionProblem<T>& p, const Engine& engine, i64 b, i64 kv_head,
               const ForwardScratch<Engine, T>& x) {
  for (i64 j = p.first_key_block(b); j < p.key_blocks(); ++j) {
    const i64 first = j * kTile, count = std::min(kTile, p.keys - first), at = j * block_elements(p);
    copy_rows(p.k, b, kv_head, first, count, p.key_width().padded, x.k_rows + at);
    auto* v_rows = Engine::kOneForm ? x.v_left_t + at : x.rows;
    copy_rows(p.v, b, kv_head, first, count, p.value_width().padded, v_rows);
    engine.left_t(v_rows, p.value_width(), x.v_left_t + at);
  }
}

/// Writes out = out_t^T / sum, and lse, for the queries of one block.
template <class T, class R = AccumulateType<T>>
void finish_block(const AttentionProblem<T>& p, i64 b, i64 head, i64 first, Softmax<R>& softmax, R* out_t, R* rows) {
  const i64 count = std::min(kTile, p.queries - first);
  R* lse = p.lse + p.lse_row(b, head) + first;
  for (i64 q = 0; q < count; ++q) {
    lse[q] = softmax.largest[q] * std::numbers::ln2_v<R> + std::log(softmax.sum[q]);
    softmax.shrink[q] = softmax.sum[q] == 0 ? 0 : 1 / softmax.sum[q];  // 0 for a query that sees no key
  }
  std::fill(softmax.shrink + count, softmax.shrink + kTile, R{0});
  const HeadWidth width = p.value_width();
  scale_queries(Span{0, kTile, 0}, width.dim, softmax.shrink, out_t);
  transpose(out_t, width.padded, kTile, rows);
  store_rows(p.out, b, head, first, count, width.padded, R{1}, rows);
}

template <class Engine, class T>
void forward_block(const AttentionProblem<T>& p, const Engine& engine, i64 b, i64 head, i64 first_query,
                   const ForwardScratch<Engine, T>& x) {
  using R = AccumulateType<T>;
  const R to_log2 = static_cast<R>(p.score_factor() * std::numbers::log2e);
  const ProbabilityDropout dropout(p, b, head);
  const HeadWidth keys = p.key_width(), values = p.value_width();
  copy_rows(p.q, b, head, first_query, std::min(kTile, p.queries - first_query), keys.padded, x.rows);
  engine.right_t(x.rows, keys, x.q_right_t);
  std::fill_n(x.out_t, block_elements(p), R{0});
  Softmax<R> softmax;
  const i64 first_block = p.first_key(b, first_query) / kTile;
  const i64 end = p.end_of_keys(std::min(first_query + kTile, p.queries) - 1);
  for (i64 j = first_block; j * kTile < end; ++j) {
    const TileOrigin at{b, first_query, j * kTile};
    const Visible v = visible(p, at);
    if (v.is_empty()) continue;
    for_query_spans(v, [&](const Span& s) {
      engine.scores(x.k_rows + j * block_elements(p), x.q_right_t, keys, x.scores, s);
      cap_tile(p, s, x.scores);
    });
    if (v.is_masked) mask_tile(p, at, v, x.scores);
    if (dropout.is_active()) dropout.factors(at, x.keep);
    for_query_spans(v, [&](const Span& s) {
      if (softmax.add(s, to_log2, x.scores) && j > first_block) scale_queries(s, values.dim, softmax.shrink, x.out_t);
      if (dropout.is_active()) drop(s, x.keep, x.scores);
    });
    const auto* tile = engine.tile_as_right(x.scores, x.tile);
    for_query_spans(
        v, [&](const Span& s) { engine.add_to_queries(x.v_left_t + j * block_elements(p), tile, values, x.out_t, s); });
  }
  finish_block(p, b, head, first_query, softmax, x.out_t, x.out_rows);
}

/// Computes one work item: query blocks `part`, part + parts, ... of the query heads that share one key head.
template <class Engine, class T>
void forward_item(const AttentionProblem<T>& p, i64 item, std::byte* memory) {
  const Engine engine;
  const ForwardScratch<Engine, T> x(p, Scratch(memory));
  const i64 part = item % p.parts, kv_head = item / p.parts % p.kv_heads, b = item / p.parts / p.kv_heads;
  pack_keys(p, engine, b, kv_head, x);
  for (i64 i = part; i < p.group() * p.query_blocks(); i += p.parts) {
    forward_block(p, engine, b, kv_head * p.group() + i / p.query_blocks(), i % p.query_blocks() * kTile, x);
  }
}

void forward_f32(const AttentionProblem<float>& p, i64 item, std::byte* memory) {
  forward_item<VectorTiles<float>>(p, item, memory);
}
void forward_f64(const AttentionProblem<double>& p, i64 item, std::byte* memory) {
  forward_item<VectorTiles<double>>(p, item, memory);
}
void forward_bf16(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory) {
  switch (p.bf16_path) {
    case Bf16Path::Amx:
      return forward_item<PairTiles<AmxUnit>>(p, item, memory);
    case Bf16Path::Dots:
      return forward_item<PairTiles<DotUnit>>(p, item, memory);
    case Bf16Path::Widen:
      return forward_item<VectorTiles<BFloat16>>(p, item, memory);
  }
}
void forward_f16(const AttentionProblem<Float16>& p, i64 item, std::byte* memory) {
  forward_item<VectorTiles<Float16>>(p, item, memory);
}

}  // namespace mcpp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp::kernel {

HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_f64);
HWY_EXPORT(forward_bf16);
HWY_EXPORT(forward_f16);

void attention_forward_item(const AttentionProblem<float>& p, i64 item, std::byte* memory) {
  HWY_DYNAMIC_DISPATCH(forward_f32)(p, item, memory);
}
void attention_forward_item(const AttentionProblem<double>& p, i64 item, std::byte* memory) {
  HWY_DYNAMIC_DISPATCH(forward_f64)(p, item, memory);
}
void attention_forward_item(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory) {
  HWY_DYNAMIC_DISPATCH(forward_bf16)(p, item, memory);
}
void attention_forward_item(const AttentionProblem<Float16>& p, i64 item, std::byte* memory) {
  HWY_DYNAMIC_DISPATCH(forward_f16)(p, item, memory);
}

template <class T>
i64 attention_forward_bytes(const AttentionProblem<T>& p) {
  const i64 blocks = 2 * p.key_blocks() + 4, tiles = 3;
  return (blocks * block_elements(p) + tiles * kTile * kTile) * static_cast<i64>(sizeof(AccumulateType<T>));
}
template i64 attention_forward_bytes(const AttentionProblem<float>&);
template i64 attention_forward_bytes(const AttentionProblem<double>&);
template i64 attention_forward_bytes(const AttentionProblem<BFloat16>&);
template i64 attention_forward_bytes(const AttentionProblem<Float16>&);

}  // namespace mcpp::kernel
#endif
