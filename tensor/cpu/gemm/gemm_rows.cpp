// GEMM c = a b^T for few rows of a, as when decoding one token of several texts. Every weight is read once from memory
// and used once per row, so memory bandwidth dominates, and copies of b would only add cost. Each element of c is a dot
// product in an order that depends only on k, so it is independent of the number of rows. Compiled once per instruction
// set by Highway.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/gemm/gemm_rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>

#include "tensor/cpu/gemm/gemm.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::kernel {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Lanes = hn::ScalableTag<float>;

constexpr i64 kLine = 64;  // bytes of a cache line

/// Size of a block of c. Its sums and operands fill the 16 registers of AVX2.
constexpr int kRows = 4, kColumns = 3;

/// Columns of c that are computed together from their rows of b.
template <class T>
struct Columns {
  const T* b;
  i64 k;
  i64 prefetched;  ///< distance to the elements of b that are prefetched; 0 = none
};

/// Computes sums[kBlockRows][kBlockColumns] of rows of a, k apart. A lane adds every Lanes-th product, and the lanes
/// are added last.
template <int kBlockRows, int kBlockColumns, class T>
HWY_INLINE void dot_block(const float* a, Columns<T> x, float* sums) {
  using namespace mcpp::HWY_NAMESPACE;
  constexpr Lanes d;
  const i64 n = static_cast<i64>(hn::Lanes(d)), step = std::max<i64>(n, kLine / i64{sizeof(T)});
  hn::Vec<Lanes> sum[kBlockRows][kBlockColumns];
  for (auto& row : sum) {
    for (auto& element : row) element = hn::Zero(d);
  }
  const auto add = [&](i64 k) HWY_ATTR {
    hn::Vec<Lanes> b[kBlockColumns];
#pragma GCC unroll 4
    for (int j = 0; j < kBlockColumns; ++j) b[j] = load(d, x.b + j * x.k + k, AllLanes());
#pragma GCC unroll 4
    for (int i = 0; i < kBlockRows; ++i) {
      const auto row = hn::LoadU(d, a + i * x.k + k);
#pragma GCC unroll 4
      for (int j = 0; j < kBlockColumns; ++j) sum[i][j] = hn::MulAdd(row, b[j], sum[i][j]);
    }
  };
  i64 k = 0;
  for (; k + step <= x.k; k += step) {
    if (x.prefetched != 0) {
#pragma GCC unroll 4
      for (int j = 0; j < kBlockColumns; ++j) __builtin_prefetch(x.b + j * x.k + k + x.prefetched);
    }
    for (i64 at = k; at < k + step; at += n) add(at);
  }
  for (; k + n <= x.k; k += n) add(k);
#pragma GCC unroll 4
  for (int i = 0; i < kBlockRows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kBlockColumns; ++j) {
      float total = hn::GetLane(hn::SumOfLanes(d, sum[i][j]));
      for (i64 at = k; at < x.k; ++at) total += a[i * x.k + at] * static_cast<float>(x.b[j * x.k + at]);
      sums[i * kBlockColumns + j] = total;
    }
  }
}

/// Computes kBlockColumns columns of all rows of c, which begin at `to`.
template <int kBlockColumns, class T, class C>
void dot_columns(GemmSize size, const float* a, Columns<T> x, float beta, C* to) {
  float sums[kRows * kBlockColumns];
  for (i64 row = 0; row < size.m; row += kRows, x.prefetched = 0) {
    const float* from = a + row * size.k;
    const i64 rows = std::min<i64>(kRows, size.m - row);
    if (rows == 1) dot_block<1, kBlockColumns>(from, x, sums);
    if (rows == 2) dot_block<2, kBlockColumns>(from, x, sums);
    if (rows == 3) dot_block<3, kBlockColumns>(from, x, sums);
    if (rows == 4) dot_block<4, kBlockColumns>(from, x, sums);
    for (i64 i = 0; i < rows; ++i) {
      for (i64 j = 0; j < kBlockColumns; ++j) {
        C& element = to[(row + i) * size.n + j];
        const float sum = sums[i * kBlockColumns + j];
        element = C(beta == 0 ? sum : sum + beta * static_cast<float>(element));
      }
    }
  }
}

/// Computes columns [begin, end) of c.
template <class T, class C>
void rows_part(GemmSize size, const float* a, const T* b, float beta, C* c, i64 begin, i64 end) {
  i64 j = begin;
  for (; j + kColumns <= end; j += kColumns)
    dot_columns<kColumns>(size, a, Columns<T>{b + j * size.k, size.k, kColumns * size.k}, beta, c + j);
  for (; j < end; ++j) dot_columns<1>(size, a, Columns<T>{b + j * size.k, size.k, size.k}, beta, c + j);
}

void rows_f32(GemmSize s, const float* a, const float* b, float beta, float* c, i64 begin, i64 end) {
  rows_part(s, a, b, beta, c, begin, end);
}
void rows_bf16(GemmSize s, const float* a, const BFloat16* b, float beta, BFloat16* c, i64 begin, i64 end) {
  rows_part(s, a, b, beta, c, begin, end);
}
void rows_bf16_to_f32(GemmSize s, const float* a, const BFloat16* b, float beta, float* c, i64 begin, i64 end) {
  rows_part(s, a, b, beta, c, begin, end);
}
void rows_f16(GemmSize s, const float* a, const Float16* b, float beta, Float16* c, i64 begin, i64 end) {
  rows_part(s, a, b, beta, c, begin, end);
}
void rows_f16_to_f32(GemmSize s, const float* a, const Float16* b, float beta, float* c, i64 begin, i64 end) {
  rows_part(s, a, b, beta, c, begin, end);
}

void widen_bf16(const BFloat16* x, i64 count, float* to) {
  mcpp::HWY_NAMESPACE::widen(x, count, to);
}
void widen_f16(const Float16* x, i64 count, float* to) {
  mcpp::HWY_NAMESPACE::widen(x, count, to);
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
HWY_EXPORT(widen_bf16);
HWY_EXPORT(widen_f16);

namespace {

void widen(const BFloat16* x, i64 count, float* to) {
  HWY_DYNAMIC_DISPATCH(widen_bf16)(x, count, to);
}
void widen(const Float16* x, i64 count, float* to) {
  HWY_DYNAMIC_DISPATCH(widen_f16)(x, count, to);
}

}  // namespace

template <class T, class C>
void gemm_rows(CpuDevice& device, GemmSize size, const T* a, const T* b, float beta, C* c) {
  const float* rows = nullptr;
  Tensor copy;
  if constexpr (std::is_same_v<T, float>) {
    rows = a;
  } else {
    copy = Tensor::empty({size.m, size.k}, DType::F32, device, MemoryClass::Workspace);
    widen(a, size.m * size.k, copy.data<float>());
    rows = copy.data<float>();
  }
  constexpr i64 kColumnsPerChunk = 48;  // a multiple of the columns of a block
  parallel_for(device, size.n, kColumnsPerChunk, [&](i64 begin, i64 end) {
    if constexpr (std::is_same_v<T, float>) {
      HWY_DYNAMIC_DISPATCH(rows_f32)(size, rows, b, beta, c, begin, end);
    } else if constexpr (std::is_same_v<C, BFloat16>) {
      HWY_DYNAMIC_DISPATCH(rows_bf16)(size, rows, b, beta, c, begin, end);
    } else if constexpr (std::is_same_v<T, BFloat16>) {
      HWY_DYNAMIC_DISPATCH(rows_bf16_to_f32)(size, rows, b, beta, c, begin, end);
    } else if constexpr (std::is_same_v<C, Float16>) {
      HWY_DYNAMIC_DISPATCH(rows_f16)(size, rows, b, beta, c, begin, end);
    } else {
      HWY_DYNAMIC_DISPATCH(rows_f16_to_f32)(size, rows, b, beta, c, begin, end);
    }
  });
}

template void gemm_rows(CpuDevice&, GemmSize, const float*, const float*, float, float*);
template void gemm_rows(CpuDevice&, GemmSize, const BFloat16*, const BFloat16*, float, float*);
template void gemm_rows(CpuDevice&, GemmSize, const BFloat16*, const BFloat16*, float, BFloat16*);
template void gemm_rows(CpuDevice&, GemmSize, const Float16*, const Float16*, float, float*);
template void gemm_rows(CpuDevice&, GemmSize, const Float16*, const Float16*, float, Float16*);

}  // namespace mcpp::kernel
#endif
