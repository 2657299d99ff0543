#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/dropout.cpp"
#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/philox-inl.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Calls f(i, lanes, factor) over one row of n elements, where `factors` computes the factor from the random words.
template <class D, class Factors, class F>
HWY_INLINE void sweep_drawn(D d, const Dropout& dropout, const Factors& factors, i64 row, i64 n, F&& f) {
  const i64 batch = static_cast<i64>(dropout.samples.size());
  const i64 sample = dropout.samples[static_cast<std::size_t>(row % batch)];
  RandomRow random(dropout.key, dropout_counter(sample, dropout.positions.at(row / batch), 0));
  for (i64 begin = 0; begin < n; begin += RandomRow::kCapacity) {
    const i64 end = std::min(n, begin + RandomRow::kCapacity);
    const u32* words = random.window(dropout.first_column + begin, end - begin);
    sweep(d, begin, end, [&](i64 i, auto lanes) { f(i, lanes, factors.of(d, words + (i - begin))); });
  }
}

/// Computes y = residual + dropout(x + bias); bias and residual may be null.
void apply_dropout(const Tensor& x, const Tensor* bias, const Tensor* residual, const Dropout& dropout, Tensor& y) {
  on_float(x.dtype(), [&]<class T>() {
    const LaneTag<T> d;
    const i64 n = x.dim(-1);
    const T *xs = x.data<T>(), *b = bias ? bias->data<T>() : nullptr, *rs = residual ? residual->data<T>() : nullptr;
    T* ys = y.data<T>();
    const auto apply = [=](i64 row, i64 i, auto lanes, auto factor) {
      auto v = load(d, xs + row * n + i, lanes);
      if (b) v = hn::Add(v, load(d, b + i, lanes));
      v = rs ? hn::MulAdd(v, factor, load(d, rs + row * n + i, lanes)) : hn::Mul(v, factor);
      store(v, d, ys + row * n + i, lanes);
    };
    parallel_for(cpu(x), row_count(x), rows_per_chunk(n), [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        if (dropout.p > 0)
          sweep_drawn(d, dropout, DropoutFactor<LaneTag<T>>(dropout.p), r, n,
                      [&](i64 i, auto lanes, auto factor) { apply(r, i, lanes, factor); });
        else
          sweep(d, 0, n, [&](i64 i, auto lanes) { apply(r, i, lanes, hn::Set(d, Lane<T>{1})); });
      }
    });
  });
}

void apply_jitter(const Tensor& x, const Dropout& draws, Tensor& y) {
  on_float(x.dtype(), [&]<class T>() {
    const LaneTag<T> d;
    const JitterFactor<LaneTag<T>> factors(draws.p);
    const i64 n = x.dim(-1);
    const T* xs = x.data<T>();
    T* ys = y.data<T>();
    parallel_for(cpu(x), row_count(x), rows_per_chunk(n), [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        sweep_drawn(d, draws, factors, r, n, [&](i64 i, auto lanes, auto factor) {
          store(hn::Mul(load(d, xs + r * n + i, lanes), factor), d, ys + r * n + i, lanes);
        });
      }
    });
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(apply_dropout);
HWY_EXPORT(apply_jitter);

template <>
void Kernels<DeviceType::Cpu>::bias_dropout_add(const Tensor& x, const Tensor* bias, const Tensor& residual,
                                                const Dropout& dropout, Tensor& y) {
  HWY_DYNAMIC_DISPATCH(apply_dropout)(x, bias, &residual, dropout, y);
}

template <>
void Kernels<DeviceType::Cpu>::dropout(const Tensor& x, const Dropout& dropout, Tensor& y) {
  HWY_DYNAMIC_DISPATCH(apply_dropout)(x, nullptr, nullptr, dropout, y);
}

template <>
void Kernels<DeviceType::Cpu>::jitter(const Tensor& x, const Dropout& draws, Tensor& y) {
  HWY_DYNAMIC_DISPATCH(apply_jitter)(x, draws, y);
}

}  // namespace mcpp
#endif  // HWY_ONCE
