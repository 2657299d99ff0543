#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/rope.cpp"
#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Computes (lower, upper) = (lower cos - upper sin, upper cos + lower sin) over `half` channels; sin times `sign`.
template <class T>
void rotate(T* lower, T* upper, const Lane<T>* cos, const Lane<T>* sin, Lane<T> sign, i64 half) {
  const LaneTag<T> d;
  sweep(d, 0, half, [=](i64 i, auto lanes) {
    const auto c = load(d, cos + i, lanes), s = hn::Mul(load(d, sin + i, lanes), hn::Set(d, sign));
    const auto a = load(d, lower + i, lanes), b = load(d, upper + i, lanes);
    store(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, lower + i, lanes);
    store(hn::MulAdd(a, s, hn::Mul(b, c)), d, upper + i, lanes);
  });
}

void rope(Heads& x, const Tensor& cos, const Tensor& sin, const Positions& positions, bool is_inverse) {
  on_float(x.base.dtype(), [&]<class T>() {
    const i64 half = cos.dim(1);
    T* base = x.base.data<T>() + x.offset;
    const auto *cosines = cos.data<Lane<T>>(), *sines = sin.data<Lane<T>>();
    const i32* starts = positions.starts_or_null();
    const auto sign = static_cast<Lane<T>>(is_inverse ? -1 : 1);
    parallel_for(cpu(x.base), x.seq * x.batch, rows_per_chunk(x.heads * x.head_dim), [&](i64 begin, i64 end) {
      for (i64 row = begin; row < end; ++row) {
        const i64 s = row / x.batch, b = row % x.batch;
        const i64 at = (positions.ranges.at(s) - (starts ? starts[row] : 0)) * half;
        for (i64 head = 0; head < x.heads; ++head) {
          T* channels = base + s * x.seq_stride + b * x.batch_stride + head / x.group_size * x.group_stride +
                        head % x.group_size * x.head_dim;
          rotate(channels, channels + half, cosines + at, sines + at, sign, half);
        }
      }
    });
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(rope);

template <>
void Kernels<DeviceType::Cpu>::rope(Heads& x, const Tensor& cos, const Tensor& sin, const Positions& positions,
                                    bool is_inverse) {
  HWY_DYNAMIC_DISPATCH(rope)(x, cos, sin, positions, is_inverse);
}

}  // namespace mcpp
#endif  // HWY_ONCE
