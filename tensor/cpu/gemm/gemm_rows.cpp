// GEMM c = a b^T for very few rows of a, as when decoding one token. Every weight is read once and used once or a
// few times, so memory bandwidth dominates, and packing or tiles would only add cost. One dot product per element of c,
// in an order that depends only on k. Compiled once per instruction set by Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/gemm/gemm_rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "tensor/cpu/gemm/gemm.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::kernel {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Lanes = hn::ScalableTag<float>;

template <class T>
HWY_INLINE hn::Vec<Lanes> load(Lanes d, const T* x) {
  return mcpp::HWY_NAMESPACE::load(d, x, mcpp::HWY_NAMESPACE::AllLanes());
}

template <class T>
float dot(const T* x, const T* y, i64 count) {
  const Lanes d;
  const i64 n = static_cast<i64>(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  i64 i = 0;
  for (; i + 4 * n <= count; i += 4 * n) {
    s0 = hn::MulAdd(load(d, x + i), load(d, y + i), s0);
    s1 = hn::MulAdd(load(d, x + i + n), load(d, y + i + n), s1);
    s2 = hn::MulAdd(load(d, x + i + 2 * n), load(d, y + i + 2 * n), s2);
    s3 = hn::MulAdd(load(d, x + i + 3 * n), load(d, y + i + 3 * n), s3);
  }
  for (; i + n <= count; i += n) s0 = hn::MulAdd(load(d, x + i), load(d, y + i), s0);
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < count; ++i) sum += static_cast<float>(x[i]) * static_cast<float>(y[i]);
  return sum;
}

// Computes columns [begin, end) of c.
template <class T, class C>
void rows_part(GemmSize size, const T* a, const T* b, float beta, C* c, i64 begin, i64 end) {
  for (i64 j = begin; j < end; ++j) {
    for (i64 i = 0; i < size.m; ++i) {
      C& to = c[i * size.n + j];
      const float sum = dot(a + i * size.k, b + j * size.k, size.k);
      to = C(beta == 0 ? sum : sum + beta * static_cast<float>(to));
    }
  }
}

void rows_f32(GemmSize s, const float* a, const float* b, float beta, float* c, i64 begin, i64 end) {
  rows_part(s, a, b, beta, c, begin, end);
}
void rows_bf16(GemmSize s, const BFloat16* a, const BFloat16* b, float beta, BFloat16* c, i64 begin, i64 end) {
  rows_part(s, a, b, beta, c, begin, end);
}
void rows_bf16_to_f32(GemmSize s, const BFloat16* a, const BFloat16* b, float beta, float* c, i64 begin, i64 end) {
  rows_part(s, a, b, beta, c, begin, end);
}
void rows_f16(GemmSize s, const Float16* a, const Float16* b, float beta, Float16* c, i64 begin, i64 end) {
  rows_part(s, a, b, beta, c, begin, end);
}
void rows_f16_to_f32(GemmSize s, const Float16* a, const Float16* b, float beta, float* c, i64 begin, i64 end) {
  rows_part(s, a, b, beta, c, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace mcpp::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp::kernel {

HWY_EXPORT(rows_f32);
HWY_EXPORT(rows_bf16);
HWY_EXPORT(rows_bf16_to_f32);
HWY_EXPORT(rows_f16);
HWY_EXPORT(rows_f16_to_f32);

template <class T, class C>
void gemm_rows(const CpuDevice& device, GemmSize size, const T* a, const T* b, float beta, C* c) {
  constexpr i64 kColumnsPerChunk = 64;
  parallel_for(device, size.n, kColumnsPerChunk, [&](i64 begin, i64 end) {
    if constexpr (std::is_same_v<T, float>) {
      HWY_DYNAMIC_DISPATCH(rows_f32)(size, a, b, beta, c, begin, end);
    } else if constexpr (std::is_same_v<C, BFloat16>) {
      HWY_DYNAMIC_DISPATCH(rows_bf16)(size, a, b, beta, c, begin, end);
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      HWY_DYNAMIC_DISPATCH(rows_bf16_to_f32)(size, a, b, beta, c, begin, end);
    } else if constexpr (std::is_same_v<C, Float16>) {
      HWY_DYNAMIC_DISPATCH(rows_f16)(size, a, b, beta, c, begin, end);
    } else {
      HWY_DYNAMIC_DISPATCH(rows_f16_to_f32)(size, a, b, beta, c, begin, end);
    }
  });
}

template void gemm_rows(const CpuDevice&, GemmSize, const float*, const float*, float, float*);
template void gemm_rows(const CpuDevice&, GemmSize, const BFloat16*, const BFloat16*, float, float*);
template void gemm_rows(const CpuDevice&, GemmSize, const BFloat16*, const BFloat16*, float, BFloat16*);
template void gemm_rows(const CpuDevice&, GemmSize, const Float16*, const Float16*, float, float*);
template void gemm_rows(const CpuDevice&, GemmSize, const Float16*, const Float16*, float, Float16*);

}  // namespace mcpp::kernel
#endif
