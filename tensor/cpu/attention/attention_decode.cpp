// Attention of single queries with many keys, as in generation: every key and value is used once, so nothing is packed.
#include "tensor/cpu/attention/attention_problem.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/attention/attention_decode.cpp"
#include "hwy/foreach_target.h"
//
#include "tensor/cpu/attention/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::kernel::HWY_NAMESPACE {

/// Computes scores[k] = q . key k, for `count` keys from `first` on. q and k are processed four vectors at a time, as
/// in sweep_slots.
template <class D, class T, class R = AccumulateType<T>>
void key_scores(D d, const AttentionProblem<T>& p, i64 b, i64 kv_head, const T* q, i64 first, i64 count, R* scores) {
  for (i64 k = 0; k < count; ++k) {
    const T* key = p.k.row(b, kv_head, first + k);
    simd::Sum<D> sum;
    simd::sweep_slots(d, 0, p.head_dim, [&](i64 i, auto lanes, int slot) HWY_ATTR {
      sum.add_product(simd::load(d, q + i, lanes), simd::load(d, key + i, lanes), slot);
    });
    scores[k] = sum.total();
  }
}

/// Computes out = out shrink + sum over k of weights[k] value k, of `count` values.
template <class D, class T, class R = AccumulateType<T>>
void add_values(D d, const AttentionProblem<T>& p, const T* values, i64 count, const R* weights, R shrink, R* out) {
  const auto factor = hn::Set(d, shrink);
  const auto n = static_cast<i64>(hn::Lanes(d));
  i64 i = 0;
  // Four independent sums overlap their latencies.
  for (; i + 4 * n <= p.v.head_dim; i += 4 * n) {
    const simd::AllLanes all;
    auto t0 = hn::Mul(hn::LoadU(d, out + i), factor), t1 = hn::Mul(hn::LoadU(d, out + i + n), factor);
    auto t2 = hn::Mul(hn::LoadU(d, out + i + 2 * n), factor), t3 = hn::Mul(hn::LoadU(d, out + i + 3 * n), factor);
    const T* value = values + i;
    for (i64 k = 0; k < count; ++k, value += p.v.seq_stride) {
      const auto weight = hn::Set(d, weights[k]);
      t0 = hn::MulAdd(weight, simd::load(d, value, all), t0);
      t1 = hn::MulAdd(weight, simd::load(d, value + n, all), t1);
      t2 = hn::MulAdd(weight, simd::load(d, value + 2 * n, all), t2);
      t3 = hn::MulAdd(weight, simd::load(d, value + 3 * n, all), t3);
    }
    hn::StoreU(t0, d, out + i), hn::StoreU(t1, d, out + i + n);
    hn::StoreU(t2, d, out + i + 2 * n), hn::StoreU(t3, d, out + i + 3 * n);
  }
  simd::sweep(d, i, p.v.head_dim, [&](i64 at, auto lanes) HWY_ATTR {
    auto total = hn::Mul(simd::load(d, out + at, lanes), factor);
    const T* value = values + at;
    for (i64 k = 0; k < count; ++k, value += p.v.seq_stride)
      total = hn::MulAdd(hn::Set(d, weights[k]), simd::load(d, value, lanes), total);
    simd::store(total, d, out + at, lanes);
  });
}

/// Processes one query of one head, over blocks of 64 keys with a running maximum. `out`, of the width of values,
/// is in the accumulate type.
template <class D, class T, class R = AccumulateType<T>>
void decode_query(D d, const AttentionProblem<T>& p, i64 b, i64 head, i64 query, R* out) {
  const i64 kv_head = head / p.group(), end = p.end_of_keys(query);
  const R to_log2 = static_cast<R>(p.score_factor() * std::numbers::log2e);
  R largest = std::numeric_limits<R>::lowest(), sum = 0;
  alignas(64) R weights[kTile];
  std::fill_n(out, p.v.head_dim, R{0});
  for (i64 first = p.first_key(b, query); first < end; first += kTile) {
    const i64 count = std::min(kTile, end - first);
    key_scores(d, p, b, kv_head, p.q.row(b, head, query), first, count, weights);
    if (p.soft_cap > 0) cap_products(p, count, weights);
    const R before = largest;
    largest = std::max(largest, to_log2 * simd::largest_of(d, weights, count));
    const R shrink = std::exp2(before - largest);
    const auto factor = hn::Set(d, to_log2), subtrahend = hn::Set(d, largest);
    simd::Sum<D> block_sum;
    simd::sweep_slots(d, 0, count, [&](i64 k, auto lanes, int slot) HWY_ATTR {
      const auto x = exp2_of(d, hn::MulSub(simd::load(d, weights + k, lanes), factor, subtrahend));
      simd::store(x, d, weights + k, lanes);
      block_sum.add(simd::used_or(d, x, hn::Zero(d), lanes), slot);
    });
    sum = sum * shrink + block_sum.total();
    add_values(d, p, p.v.row(b, kv_head, first), count, weights, shrink, out);
  }
  p.lse[p.lse_row(b, head) + query] = largest * std::numbers::ln2_v<R> + std::log(sum);
  const auto inverse = hn::Set(d, sum == 0 ? 0 : 1 / sum);  // 0 if no key is seen
  p.out.visit([&](const auto& rows) {
    auto* to = rows.row(b, head, query);
    simd::sweep(d, 0, p.v.head_dim, [&](i64 i, auto lanes) HWY_ATTR {
      simd::store(hn::Mul(simd::load(d, out + i, lanes), inverse), d, to + i, lanes);
    });
  });
}

template <class T>
void decode_item(const AttentionProblem<T>& p, i64 item, std::byte* memory) {
  const i64 head = item % p.heads, b = item / p.heads;
  auto* out = reinterpret_cast<AccumulateType<T>*>(memory);
  for (i64 q = 0; q < p.queries; ++q) decode_query(hn::ScalableTag<AccumulateType<T>>(), p, b, head, q, out);
}

void decode_f32(const AttentionProblem<float>& p, i64 item, std::byte* memory) {
  decode_item(p, item, memory);
}
void decode_f64(const AttentionProblem<double>& p, i64 item, std::byte* memory) {
  decode_item(p, item, memory);
}
void decode_bf16(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory) {
  decode_item(p, item, memory);
}
void decode_f16(const AttentionProblem<Float16>& p, i64 item, std::byte* memory) {
  decode_item(p, item, memory);
}

}  // namespace mcpp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp::kernel {

HWY_EXPORT(decode_f32);
HWY_EXPORT(decode_f64);
HWY_EXPORT(decode_bf16);
HWY_EXPORT(decode_f16);

void attention_decode_item(const AttentionProblem<float>& p, i64 item, std::byte* memory) {
  HWY_DYNAMIC_DISPATCH(decode_f32)(p, item, memory);
}
void attention_decode_item(const AttentionProblem<double>& p, i64 item, std::byte* memory) {
  HWY_DYNAMIC_DISPATCH(decode_f64)(p, item, memory);
}
void attention_decode_item(const AttentionProblem<BFloat16>& p, i64 item, std::byte* memory) {
  HWY_DYNAMIC_DISPATCH(decode_bf16)(p, item, memory);
}
void attention_decode_item(const AttentionProblem<Float16>& p, i64 item, std::byte* memory) {
  HWY_DYNAMIC_DISPATCH(decode_f16)(p, item, memory);
}

template <class T>
i64 attention_decode_bytes(const AttentionProblem<T>& p) {
  return p.v.head_dim * static_cast<i64>(sizeof(AccumulateType<T>));
}
template i64 attention_decode_bytes(const AttentionProblem<float>&);
template i64 attention_decode_bytes(const AttentionProblem<double>&);
template i64 attention_decode_bytes(const AttentionProblem<BFloat16>&);
template i64 attention_decode_bytes(const AttentionProblem<Float16>&);

}  // namespace mcpp::kernel
#endif
