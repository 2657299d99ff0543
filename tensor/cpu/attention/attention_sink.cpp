#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/attention/attention_sink.cpp"
#include <cmath>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/math-inl.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Returns a sink as a lane; 0 without sinks.
template <class T>
Lane<T> sink_of(const T* sinks, i64 head) {
  return sinks ? static_cast<Lane<T>>(to_double(sinks[head])) : Lane<T>{0};
}

void attention_sink(const Tensor* sinks, AttentionResult& y) {
  on_float(y.out.dtype(), [&]<class T>() {
    using R = Lane<T>;
    const LaneTag<T> d;
    const i64 heads = y.lse.dim(1), seq = y.lse.dim(2), batch = y.lse.dim(0), dim = y.out.dim(2) / heads;
    const T* logits = sinks ? sinks->data<T>() : nullptr;
    T* out = y.out.data<T>();
    R* lse = y.lse.data<R>();
    parallel_for(cpu(y.out), seq * batch * heads, rows_per_chunk(dim), [=](i64 begin, i64 end) {
      for (i64 row = begin; row < end; ++row) {
        const i64 head = row % heads, b = row / heads % batch, at = (b * heads + head) * seq + row / heads / batch;
        const R sink = sink_of(logits, head), largest = std::max(lse[at], sink);
        const R own = std::exp(lse[at] - largest), sum = own + std::exp(sink - largest);
        lse[at] = largest + std::log(sum);
        const auto factor = hn::Set(d, own / sum);
        sweep(d, row * dim, (row + 1) * dim,
              [=](i64 i, auto lanes) { store(hn::Mul(load(d, out + i, lanes), factor), d, out + i, lanes); });
      }
    });
  });
}

void scale_by_sinks(const Tensor& sinks, const Tensor& lse, Tensor& dots) {
  on_float(sinks.dtype(), [&]<class T>() {
    using R = Lane<T>;
    const i64 seq = dots.dim(0), batch = dots.dim(1), heads = dots.dim(2);
    const T* logits = sinks.data<T>();
    const R* sums = lse.data<R>();
    R* values = dots.data<R>();
    parallel_for(cpu(dots), seq * batch, rows_per_chunk(heads), [=](i64 begin, i64 end) {
      for (i64 row = begin; row < end; ++row) {
        for (i64 head = 0; head < heads; ++head) {
          const R log_sum = sums[(row % batch * heads + head) * seq + row / batch];
          values[row * heads + head] *= -std::exp(sink_of(logits, head) - log_sum);
        }
      }
    });
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(attention_sink);
HWY_EXPORT(scale_by_sinks);

template <>
void Kernels<DeviceType::Cpu>::attention_sink(const Tensor* sinks, AttentionResult& y) {
  HWY_DYNAMIC_DISPATCH(attention_sink)(sinks, y);
}

template <>
void Kernels<DeviceType::Cpu>::scale_by_sinks(const Tensor& sinks, const Tensor& lse, Tensor& dots) {
  HWY_DYNAMIC_DISPATCH(scale_by_sinks)(sinks, lse, dots);
}

template <>
void Kernels<DeviceType::Cpu>::chunk_starts(const PositionRanges& positions, i64 chunk, const Tensor* documents,
                                            Tensor& starts) {
  const i64 batch = starts.dim(1);
  const i32* begins = documents ? documents->data<i32>() : nullptr;
  i32* out = starts.data<i32>();
  for (i64 i = 0; i < starts.numel(); ++i) {
    const i64 begin = begins ? begins[i] : 0;
    out[i] = static_cast<i32>(begin + (positions.at(i / batch) - begin) / chunk * chunk);
  }
}

}  // namespace mcpp
#endif  // HWY_ONCE
