// Largest scores of attention, in the tiles of the forward pass, so that they equal the scores that it uses.
#include "tensor/cpu/attention/attention_logits.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/attention/attention_logits.cpp"
#include "hwy/foreach_target.h"
//
#include "tensor/cpu/attention/attention_engines-inl.h"
#include "tensor/cpu/attention/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::kernel::HWY_NAMESPACE {

/// Packed keys of one key head, and the tile of one query block.
template <class Engine, class T>
struct LogitScratch {
  using P = typename Engine::Packed;
  using R = AccumulateType<T>;
  P *k_rows, *rows, *q_right_t;
  R* scores;

  LogitScratch(const AttentionProblem<T>& p, Scratch scratch)
      : k_rows(scratch.take<P>(p.key_blocks() * block_elements(p))),
        rows(scratch.take<P>(block_elements(p))),
        q_right_t(scratch.take<P>(block_elements(p))),
        scores(scratch.take<R>(kTile * kTile)) {}
};

/// Computes largest[q] = max(largest[q], scores of query q) over the span.
template <class R>
void take_largest(const Span& span, const R* scores, R* largest) {
  const hn::ScalableTag<R> d;
  for (i64 k = 0; k < span.depth; ++k) {
    for (i64 q = span.begin; q < span.end; q += static_cast<i64>(hn::Lanes(d)))
      hn::StoreU(hn::Max(hn::LoadU(d, largest + q), hn::LoadU(d, scores + k * kTile + q)), d, largest + q);
  }
}

/// Returns the largest score of a block of queries.
template <class Engine, class T, class R = AccumulateType<T>>
R largest_of_block(const AttentionProblem<T>& p, const Engine& engine, i64 b, i64 head, i64 first_query,
                   const LogitScratch<Engine, T>& x) {
  const i64 count = std::min(kTile, p.queries - first_query);
  copy_rows(p.q, b, head, first_query, count, p.key_width().padded, x.rows);
  engine.right_t(x.rows, p.key_width(), x.q_right_t);
  alignas(64) R largest[kTile];
  std::fill_n(largest, kTile, -std::numeric_limits<R>::infinity());
  const i64 end = p.end_of_keys(first_query + count - 1);
  for (i64 j = p.first_key(b, first_query) / kTile; j * kTile < end; ++j) {
    const TileOrigin at{b, first_query, j * kTile};
    const Visible v = visible(p, at);
    if (v.is_empty()) continue;
    for_query_spans(v, [&](const Span& s) {
      engine.scores(x.k_rows + j * block_elements(p), x.q_right_t, p.key_width(), x.scores, s);
      cap_tile(p, s, x.scores);
    });
    if (v.is_masked) mask_tile(p, at, v, x.scores);
    for_query_spans(v, [&](const Span& s) { take_largest(s, x.scores, largest); });
  }
  return *std::max_element(largest, largest + count);  // rows past the last query are zero
}

template <class Engine, class T, class R = AccumulateType<T>>
void logits_item(const AttentionProblem<T>& p, i64 item, std::byte* memory, R* largest) {
  const Engine engine;
  const LogitScratch<Engine, T> x(p, Scratch(memory));
  const i64 part = item % p.parts, kv_head = item / p.parts % p.kv_heads, b = item / p.parts / p.kv_heads;
  for (i64 j = p.first_key_block(b); j < p.key_blocks(); ++j) {
    const i64 first = j * kTile, count = std::min(kTile, p.keys - first);
    copy_rows(p.k, b, kv_head, first, count, p.key_width().padded, x.k_rows + j * block_elements(p));
  }
  std::fill_n(largest + kv_head * p.group(), p.group(), -std::numeric_limits<R>::infinity());
  for (i64 i = part; i < p.group() * p.query_blocks(); i += p.parts) {
    const i64 head = kv_head * p.group() + i / p.query_blocks();
    const R of_block = largest_of_block(p, engine, b, head, i % p.query_blocks() * kTile, x);
    largest[head] = std::max(largest[head], of_block);
  }
}

void logits_f32(const AttentionProblem<float>& p, i64 item, std::byte* memory, float* largest) {
  logits_item<VectorTiles<float>>(p, item, memory, largest);
}
void logits_f64(const AttentionProblem<double>& p, i64 item, std::byte* memory, double* largest) {
  logits_item<VectorTiles<double>>(p, item, memory, largest);
}
void logits_bf16(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory, float* largest) {
  switch (p.bf16_path) {
    case Bf16Path::Amx:
      return logits_item<PairTiles<AmxUnit>>(p, item, memory, largest);
    case Bf16Path::Dots:
      return logits_item<PairTiles<DotUnit>>(p, item, memory, largest);
    case Bf16Path::Widen:
      return logits_item<VectorTiles<BFloat16>>(p, item, memory, largest);
  }
}
void logits_f16(const AttentionProblem<Float16>& p, i64 item, std::byte* memory, float* largest) {
  logits_item<VectorTiles<Float16>>(p, item, memory, largest);
}

}  // namespace mcpp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp::kernel {

HWY_EXPORT(logits_f32);
HWY_EXPORT(logits_f64);
HWY_EXPORT(logits_bf16);
HWY_EXPORT(logits_f16);

void attention_logits_item(const AttentionProblem<float>& p, i64 item, std::byte* memory, float* largest) {
  HWY_DYNAMIC_DISPATCH(logits_f32)(p, item, memory, largest);
}
void attention_logits_item(const AttentionProblem<double>& p, i64 item, std::byte* memory, double* largest) {
  HWY_DYNAMIC_DISPATCH(logits_f64)(p, item, memory, largest);
}
void attention_logits_item(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory, float* largest) {
  HWY_DYNAMIC_DISPATCH(logits_bf16)(p, item, memory, largest);
}
void attention_logits_item(const AttentionProblem<Float16>& p, i64 item, std::byte* memory, float* largest) {
  HWY_DYNAMIC_DISPATCH(logits_f16)(p, item, memory, largest);
}

template <class T>
i64 attention_logits_bytes(const AttentionProblem<T>& p) {
  return ((p.key_blocks() + 2) * block_elements(p) + kTile * kTile) * static_cast<i64>(sizeof(AccumulateType<T>)) + 256;
}
template i64 attention_logits_bytes(const AttentionProblem<float>&);
template i64 attention_logits_bytes(const AttentionProblem<double>&);
template i64 attention_logits_bytes(const AttentionProblem<BFloat16>&);
template i64 attention_logits_bytes(const AttentionProblem<Float16>&);

}  // namespace mcpp::kernel
#endif
