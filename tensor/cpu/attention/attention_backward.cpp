// Gradient of attention in tiles: probabilities are recomputed from lse. Dao et al., "FlashAttention", 2022.
#include "tensor/cpu/attention/attention_problem.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/attention/attention_backward.cpp"
#include "hwy/foreach_target.h"
//
#include "tensor/cpu/attention/attention_engines-inl.h"
#include "tensor/cpu/attention/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::kernel::HWY_NAMESPACE {

/// Packed blocks of one key head and of one of its query heads, and the tiles of one (key block, query block) pair.
template <class Engine, class T>
struct BackwardScratch {
  using P = typename Engine::Packed;
  using R = AccumulateType<T>;
  static constexpr i64 kQueryForms = 4, kKeyForms = Engine::kOneForm ? 2 : 3;
  P *k_rows, *v_rows, *k_left_t;
  P *q_right, *q_right_t, *dout_right, *dout_right_t;
  R *dq_t, *dk, *dv;
  R *lse_log2, *delta;  ///< lse log2(e), and the sum of dout * out, by query
  P *rows, *tile;
  R *probabilities, *gradients, *wide_rows, *keep;

  BackwardScratch(const AttentionProblem<T>& p, Scratch scratch) {
    const i64 of_keys = p.key_blocks() * block_elements(p), of_queries = p.query_blocks() * block_elements(p);
    k_rows = scratch.take<P>(of_keys), v_rows = scratch.take<P>(of_keys);
    k_left_t = Engine::kOneForm ? k_rows : scratch.take<P>(of_keys);
    for (P** form : {&q_right, &q_right_t, &dout_right, &dout_right_t}) *form = scratch.take<P>(of_queries);
    dq_t = scratch.take<R>(of_queries), dk = scratch.take<R>(of_keys), dv = scratch.take<R>(of_keys);
    for (R** vector : {&lse_log2, &delta}) *vector = scratch.take<R>(p.query_blocks() * kTile);
    rows = scratch.take<P>(block_elements(p)), tile = scratch.take<P>(kTile * kTile);
    for (R** t : {&probabilities, &gradients}) *t = scratch.take<R>(kTile * kTile);
    wide_rows = scratch.take<R>(block_elements(p));
    keep = scratch.take<R>(p.dropout.p > 0 ? kTile * kTile : 0);
  }
};

template <class Engine, class T>
void pack_keys(const AttentionProblem<T>& p, const Engine& engine, i64 b, i64 kv_head,
               const BackwardScratch<Engine, T>& x) {
  for (i64 j = p.first_key_block(b); j < p.key_blocks(); ++j) {
    const i64 first = j * kTile, count = std::min(kTile, p.keys - first), at = j * block_elements(p);
    copy_rows(p.k, b, kv_head, first, count, p.key_width().padded, x.k_rows + at);
    copy_rows(p.v, b, kv_head, first, count, p.value_width().padded, x.v_rows + at);
    engine.left_t(x.k_rows + at, p.key_width(), x.k_left_t + at);
  }
}

/// Packs both forms of one block of q or dout.
template <class Engine, class T, class P>
void pack_right(const Engine& engine, const HeadRows<T>& from, i64 b, i64 head, i64 first, i64 count, P* rows, P* right,
                P* right_t) {
  const HeadWidth width(from.head_dim);
  if constexpr (Engine::kOneForm) rows = right;
  copy_rows(from, b, head, first, count, width.padded, rows);
  engine.right(rows, width, right);
  engine.right_t(rows, width, right_t);
}

/// Returns the sum over a head's channels of a * b.
template <class T>
AccumulateType<T> dot(const T* a, const T* b, i64 count) {
  using D = hn::ScalableTag<AccumulateType<T>>;
  simd::Sum<D> sum;
  simd::sweep_slots(D(), 0, count, [&](i64 i, auto lanes, int slot) HWY_ATTR {
    sum.add_product(simd::load(D(), a + i, lanes), simd::load(D(), b + i, lanes), slot);
  });
  return sum.total();
}

template <class Engine, class T>
void pack_queries(const AttentionProblem<T>& p, const Engine& engine, i64 b, i64 head,
                  const BackwardScratch<Engine, T>& x) {
  using R = AccumulateType<T>;
  const R* lse = p.lse + p.lse_row(b, head);
  // Yields probability 0: for queries that see no key, and for padding of the last tile.
  constexpr R kMaskedLse = std::numeric_limits<R>::max();
  for (i64 i = 0; i < p.query_blocks(); ++i) {
    const i64 first = i * kTile, count = std::min(kTile, p.queries - first), at = i * block_elements(p);
    pack_right(engine, p.q, b, head, first, count, x.rows, x.q_right + at, x.q_right_t + at);
    pack_right(engine, p.dout, b, head, first, count, x.rows, x.dout_right + at, x.dout_right_t + at);
    for (i64 q = first; q < first + count; ++q) {
      prefetch_row_after<false>(p.y.row(b, head, q), p.y.seq_stride, p.y.head_dim);
      x.lse_log2[q] = lse[q] == -std::numeric_limits<R>::infinity() ? kMaskedLse : lse[q] * std::numbers::log2e_v<R>;
      x.delta[q] = dot(p.dout.row(b, head, q), p.y.row(b, head, q), p.y.head_dim);
    }
  }
  std::fill(x.lse_log2 + p.queries, x.lse_log2 + p.query_blocks() * kTile, kMaskedLse);
  std::fill(x.delta + p.queries, x.delta + p.query_blocks() * kTile, R{0});
}

/// Computes in place, over the span: scores -> probabilities after dropout; their gradient -> the gradient of the
/// scores (before the scale), or with a soft cap the gradient of the dot products, using the slope of the cap.
template <bool kDropout, bool kCapped, class R>
void differentiate_softmax(const Span& span, R to_log2, const R* lse_log2, const R* delta, const R* keep, R* s, R* ds) {
  const hn::ScalableTag<R> d;
  const auto factor = hn::Set(d, to_log2);
  for (i64 q = span.begin; q < span.end; q += static_cast<i64>(hn::Lanes(d))) {
    const auto largest = hn::LoadU(d, lse_log2 + q), mean = hn::LoadU(d, delta + q);
    for (i64 k = 0; k < span.depth; ++k) {
      R *at_s = s + k * kTile + q, *at_ds = ds + k * kTile + q;
      const auto p = exp2_of(d, hn::MulSub(hn::LoadU(d, at_s), factor, largest));
      auto dp = hn::LoadU(d, at_ds), dropped = p;
      if constexpr (kDropout) {
        const auto kept = hn::LoadU(d, keep + k * kTile + q);
        dropped = hn::Mul(p, kept), dp = hn::Mul(dp, kept);
      }
      auto gradient = hn::Mul(p, hn::Sub(dp, mean));
      if constexpr (kCapped) {
        const auto capped = hn::LoadU(d, at_s), slope = hn::NegMulAdd(capped, capped, hn::Set(d, R{1}));
        gradient = hn::Mul(gradient, hn::Max(slope, hn::Zero(d)));  // 0 for a hidden key, whose score is -infinity
      }
      hn::StoreU(dropped, d, at_s);
      hn::StoreU(gradient, d, at_ds);
    }
  }
}

template <class Engine, class T>
void backward_tile(const AttentionProblem<T>& p, const Engine& engine, const ProbabilityDropout& dropout,
                   const TileOrigin& at, const BackwardScratch<Engine, T>& x) {
  using R = AccumulateType<T>;
  const Visible v = visible(p, at);
  if (v.is_empty()) return;
  const HeadWidth keys = p.key_width(), values = p.value_width();
  const i64 q_at = at.first_query / kTile * block_elements(p), k_at = at.first_key / kTile * block_elements(p);
  for_query_spans(v, [&](const Span& s) {
    engine.scores(x.k_rows + k_at, x.q_right_t + q_at, keys, x.probabilities, s);
    cap_tile(p, s, x.probabilities);
    engine.scores(x.v_rows + k_at, x.dout_right_t + q_at, values, x.gradients, s);
  });
  if (v.is_masked) mask_tile(p, at, v, x.probabilities);
  if (dropout.is_active()) dropout.factors(at, x.keep);
  const R to_log2 = static_cast<R>(p.score_factor() * std::numbers::log2e);
  const bool drops = dropout.is_active();
  const auto differentiate =
      p.soft_cap > 0 ? (drops ? differentiate_softmax<true, true, R> : differentiate_softmax<false, true, R>)
      : drops        ? differentiate_softmax<true, false, R>
                     : differentiate_softmax<false, false, R>;
  for_query_spans(v, [&](const Span& s) {
    differentiate(s, to_log2, x.lse_log2 + at.first_query, x.delta + at.first_query, x.keep, x.probabilities,
                  x.gradients);
  });
  const auto add_to_keys = [&](const R* tile, const auto* right, HeadWidth width, R* sum) {
    const auto* left = engine.tile_as_left(tile, x.tile);
    sum += at.first_key * width.padded;
    for_key_spans(v, [&](const KeySpan& s) { engine.add_to_keys(left, right + q_at, width, sum, s); });
  };
  add_to_keys(x.probabilities, x.dout_right, values, x.dv);
  add_to_keys(x.gradients, x.q_right, keys, x.dk);
  const auto* right = engine.tile_as_right(x.gradients, x.tile);
  for_query_spans(v, [&](const Span& s) { engine.add_to_queries(x.k_left_t + k_at, right, keys, x.dq_t + q_at, s); });
}

template <class Engine, class T>
void store_query_gradient(const AttentionProblem<T>& p, i64 b, i64 head, const BackwardScratch<Engine, T>& x) {
  for (i64 i = 0; i < p.query_blocks(); ++i) {
    const i64 padded = p.key_width().padded;
    transpose(x.dq_t + i * block_elements(p), padded, kTile, x.wide_rows);
    store_rows(p.dq, b, head, i * kTile, std::min(kTile, p.queries - i * kTile), padded,
               static_cast<AccumulateType<T>>(p.scale), x.wide_rows);
  }
}

/// Computes one work item: the gradients of a key head and of the query heads that share it.
template <class Engine, class T>
void backward_item(const AttentionProblem<T>& p, i64 item, std::byte* memory) {
  using R = AccumulateType<T>;
  const Engine engine;
  const BackwardScratch<Engine, T> x(p, Scratch(memory));
  const i64 kv_head = item % p.kv_heads, b = item / p.kv_heads;
  pack_keys(p, engine, b, kv_head, x);
  std::fill_n(x.dk, p.key_blocks() * block_elements(p), R{0});
  std::fill_n(x.dv, p.key_blocks() * block_elements(p), R{0});
  for (i64 head = kv_head * p.group(); head < (kv_head + 1) * p.group(); ++head) {
    const ProbabilityDropout dropout(p, b, head);
    pack_queries(p, engine, b, head, x);
    std::fill_n(x.dq_t, p.query_blocks() * block_elements(p), R{0});
    for (i64 j = p.first_key_block(b); j < p.key_blocks(); ++j) {
      for (i64 i = p.first_query_block(j * kTile); i < p.query_blocks(); ++i) {
        if (p.first_key(b, i * kTile) >= (j + 1) * kTile) break;  // this query and all later ones see only later keys
        backward_tile(p, engine, dropout, {b, i * kTile, j * kTile}, x);
      }
    }
    store_query_gradient(p, b, head, x);
  }
  store_rows(p.dk, b, kv_head, 0, p.keys, p.key_width().padded, static_cast<R>(p.scale), x.dk);
  store_rows(p.dv, b, kv_head, 0, p.keys, p.value_width().padded, R{1}, x.dv);
}

void backward_f32(const AttentionProblem<float>& p, i64 item, std::byte* memory) {
  backward_item<VectorTiles<float>>(p, item, memory);
}
void backward_f64(const AttentionProblem<double>& p, i64 item, std::byte* memory) {
  backward_item<VectorTiles<double>>(p, item, memory);
}
void backward_bf16(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory) {
  switch (p.bf16_path) {
    case Bf16Path::Amx:
      return backward_item<PairTiles<AmxUnit>>(p, item, memory);
    case Bf16Path::Dots:
      return backward_item<PairTiles<DotUnit>>(p, item, memory);
    case Bf16Path::Widen:
      return backward_item<VectorTiles<BFloat16>>(p, item, memory);
  }
}
void backward_f16(const AttentionProblem<Float16>& p, i64 item, std::byte* memory) {
  backward_item<VectorTiles<Float16>>(p, item, memory);
}

}  // namespace mcpp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp::kernel {

HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_f64);
HWY_EXPORT(backward_bf16);
HWY_EXPORT(backward_f16);

void attention_backward_item(const AttentionProblem<float>& p, i64 item, std::byte* memory) {
  HWY_DYNAMIC_DISPATCH(backward_f32)(p, item, memory);
}
void attention_backward_item(const AttentionProblem<double>& p, i64 item, std::byte* memory) {
  HWY_DYNAMIC_DISPATCH(backward_f64)(p, item, memory);
}
void attention_backward_item(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory) {
  HWY_DYNAMIC_DISPATCH(backward_bf16)(p, item, memory);
}
void attention_backward_item(const AttentionProblem<Float16>& p, i64 item, std::byte* memory) {
  HWY_DYNAMIC_DISPATCH(backward_f16)(p, item, memory);
}

}  // namespace mcpp::kernel
#endif
