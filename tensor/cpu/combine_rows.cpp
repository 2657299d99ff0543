// Combination of the expert outputs of each token, and its backward pass.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/combine_rows.cpp"
#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Computes y[n] = sum of weights[j] x[slots[j]] over the k slots, skipping empty slots. weights may be null.
template <class T>
void combine_row(const T* x, const i32* slots, const Lane<T>* weights, i64 k, T* y, i64 n) {
  const LaneTag<T> d;
  sweep(d, 0, n, [=](i64 i, auto lanes) {
    auto sum = hn::Zero(d);
    for (i64 j = 0; j < k; ++j) {
      if (slots[j] < 0) continue;
      const auto row = load(d, x + slots[j] * n + i, lanes);
      sum = weights ? hn::MulAdd(hn::Set(d, weights[j]), row, sum) : hn::Add(sum, row);
    }
    store(sum, d, y + i, lanes);
  });
}

void combine_rows(const Tensor& x, const Tensor& slots, const Tensor* weights, Tensor& y) {
  on_float(x.dtype(), [&]<class T>() {
    const i64 n = x.dim(1), k = slots.dim(1);
    const T* from = x.data<T>();
    const i32* at = slots.data<i32>();
    const auto* w = weights ? weights->data<Lane<T>>() : nullptr;
    T* to = y.data<T>();
    parallel_for(cpu(y), slots.dim(0), rows_per_chunk(n * k), [=](i64 begin, i64 end) {
      for (i64 t = begin; t < end; ++t) combine_row(from, at + t * k, w ? w + t * k : nullptr, k, to + t * n, n);
    });
  });
}

/// Computes dx[n] = weight dy and returns dy . x. dx may alias x.
template <class T>
Lane<T> combine_row_backward(const T* dy, const T* x, Lane<T> weight, T* dx, i64 n) {
  const LaneTag<T> d;
  const auto factor = hn::Set(d, weight);
  Sum<LaneTag<T>> sum;
  sweep_slots(d, 0, n, [&](i64 i, auto lanes, int slot) {
    const auto g = load(d, dy + i, lanes);
    sum.add_product(g, load(d, x + i, lanes), slot);
    store(hn::Mul(g, factor), d, dx + i, lanes);
  });
  return sum.total();
}

void combine_rows_backward(const Tensor& dy, const Tensor& x, const Tensor& slots, const Tensor& weights, Tensor& dx,
                           Tensor& d_weights) {
  on_float(x.dtype(), [&]<class T>() {
    const i64 n = x.dim(1), k = slots.dim(1);
    const T *g = dy.data<T>(), *from = x.data<T>();
    const i32* at = slots.data<i32>();
    const auto* w = weights.data<Lane<T>>();
    auto* dw = d_weights.data<Lane<T>>();
    T* to = dx.data<T>();
    parallel_for(cpu(dy), slots.dim(0), rows_per_chunk(n * k), [=](i64 begin, i64 end) {
      for (i64 i = begin * k; i < end * k; ++i) {
        dw[i] = at[i] < 0 ? Lane<T>{0} : combine_row_backward(g + i / k * n, from + at[i] * n, w[i], to + at[i] * n, n);
      }
    });
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(combine_rows);
HWY_EXPORT(combine_rows_backward);

template <>
void Kernels<DeviceType::Cpu>::combine_rows(const Tensor& x, const Tensor& slots, const Tensor* weights, Tensor& y) {
  HWY_DYNAMIC_DISPATCH(combine_rows)(x, slots, weights, y);
}

template <>
void Kernels<DeviceType::Cpu>::combine_rows_backward(const Tensor& dy, const Tensor& x, const Tensor& slots,
                                                     const Tensor& weights, Tensor& dx, Tensor& d_weights) {
  HWY_DYNAMIC_DISPATCH(combine_rows_backward)(dy, x, slots, weights, dx, d_weights);
}

}  // namespace mcpp
#endif  // HWY_ONCE
