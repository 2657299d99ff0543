#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/attention/merge_attention.cpp"
#include <cmath>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Computes to = own to + other from, over n channels.
template <class T, class S>
void add_weighted(const T* from, Lane<T> other, S* to, Lane<T> own, i64 n) {
  const LaneTag<T> d;
  sweep(d, 0, n, [=](i64 i, auto lanes) {
    const auto scaled = hn::Mul(hn::Set(d, own), load(d, to + i, lanes));
    store(hn::MulAdd(hn::Set(d, other), load(d, from + i, lanes), scaled), d, to + i, lanes);
  });
}

template <class T, class S>
void merge_rows(const AttentionResult& part, AttentionResult& total) {
  using R = Lane<T>;
  const i64 heads = part.lse.dim(1), seq = part.lse.dim(2), batch = part.lse.dim(0), dim = part.out.dim(2) / heads;
  const T* from = part.out.data<T>();
  S* to = total.out.data<S>();
  const R* others = part.lse.data<R>();
  R* owns = total.lse.data<R>();
  parallel_for(cpu(part.out), seq * batch * heads, rows_per_chunk(dim), [=](i64 begin, i64 end) {
    for (i64 row = begin; row < end; ++row) {
      const i64 head = row % heads, b = row / heads % batch, at = (b * heads + head) * seq + row / heads / batch;
      const R largest = std::max(owns[at], others[at]);
      if (others[at] == -std::numeric_limits<R>::infinity()) continue;
      const R own = std::exp(owns[at] - largest), other = std::exp(others[at] - largest), sum = own + other;
      owns[at] = largest + std::log(sum);
      add_weighted(from + row * dim, other / sum, to + row * dim, own / sum, dim);
    }
  });
}

void merge_attention(const AttentionResult& part, AttentionResult& total) {
  on_float(part.out.dtype(), [&]<class T>() {
    if (total.out.dtype() == part.out.dtype())
      merge_rows<T, T>(part, total);
    else
      merge_rows<T, Lane<T>>(part, total);
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(merge_attention);

template <>
void Kernels<DeviceType::Cpu>::merge_attention(const AttentionResult& part, AttentionResult& total) {
  HWY_DYNAMIC_DISPATCH(merge_attention)(part, total);
}

}  // namespace mcpp
#endif  // HWY_ONCE
