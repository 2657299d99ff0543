// ops::matmul on the CPU: selects the implementation by dtype and processor features.
#include <algorithm>

#include "tensor/cpu/gemm/gemm.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/ops/groups.h"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace kernel {
namespace {

template <class T>
Operand<T> operand(const Tensor& x, bool transposed) {
  return {x.data<T>(), x.dim(1), transposed};
}

/// Returns true if ordered sums are faster than sgemm, by up to 2.5 times with few rows and 5 % with many: for a b^T
/// with rows of b a multiple of 2 KiB apart, where sgemm reads rows that share L1 cache lines. For very few rows, sgemm
/// has a special kernel that avoids this. Apart from that and from are_few_rows(), the choice is independent of the
/// number of rows, so that the result for a row does not depend on other rows.
template <class T>
bool is_ordered_gemm_faster(GemmSize size, Operand<T> a, Operand<T> b) {
  constexpr i64 kMaxSmallKernelRows = 12;  // maximum rows of sgemm's special kernel
  return std::is_same_v<T, float> && !a.transposed && b.transposed && b.ld % 512 == 0 && size.m > kMaxSmallKernelRows;
}

/// Multiplies with oneDNN's sgemm, or with ordered sums where sgemm is slower or unsafe.
template <class T, class C>
void multiply_in_f32(CpuDevice& device, GemmSize size, Operand<T> a, Operand<T> b, float beta, C* c) {
  if (!device.gemm_cache().choose_sgemm() || is_ordered_gemm_faster(size, a, b)) {
    const Gemm<T, C> gemm{size, a, b, c, size.n, beta};
    return gemm_ordered<T, C>(device, {&gemm, 1});
  }
  if constexpr (std::is_same_v<T, float>)
    gemm_f32(device, size, a, b, beta, c);
  else
    gemm_widened(device, size, a, b, beta, c);
}

template <class C>
void multiply_bf16(CpuDevice& device, GemmSize size, Operand<BFloat16> a, Operand<BFloat16> b, float beta, C* c) {
  switch (device.gemm_cache().choose_bf16_path()) {
    case Bf16Path::Amx:
      return gemm_amx(device, size, a, b, beta, c);
    case Bf16Path::Dots:
      return gemm_onednn(device, size, a, b, beta, c);
    case Bf16Path::Widen:
      return multiply_in_f32(device, size, a, b, beta, c);
  }
}

/// Returns true if gemm_rows() is used, which is faster than copying b: for few rows and, without sgemm, for up to 31
/// if b is so large that it is read from memory, as when decoding a batch of texts. Small matrices keep the limit of 4,
/// so that fewer numbers of rows change the rounding of a row.
template <class T>
bool are_few_rows(CpuDevice& device, GemmSize size, Operand<T> a, Operand<T> b) {
  if (a.transposed || !b.transposed) return false;
  if (size.m <= kFewRows) return true;
  if (size.m > kFewRowsOfLargeMatrix || size.n * size.k < kLargeMatrix) return false;
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (device.gemm_cache().choose_bf16_path() != Bf16Path::Widen) return false;
  }
  return !device.gemm_cache().choose_sgemm();
}

template <class T, class C>
void multiply(CpuDevice& device, GemmSize size, Operand<T> a, Operand<T> b, float beta, C* c) {
  if constexpr (std::is_same_v<T, double>) {
    gemm_f64(device, size, a, b, beta, c);
  } else if (are_few_rows(device, size, a, b)) {
    gemm_rows(device, size, a.data, b.data, beta, c);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    multiply_bf16(device, size, a, b, beta, c);
  } else {
    multiply_in_f32(device, size, a, b, beta, c);
  }
}

}  // namespace
}  // namespace kernel

template <>
void Kernels<DeviceType::Cpu>::matmul(const Tensor& a, const Tensor& b, Tensor& c, const ops::MatmulOptions& options) {
  const kernel::GemmSize size{c.dim(0), c.dim(1), a.dim(options.transpose_a ? 0 : 1)};
  if (size.m == 0 || size.n == 0) return;
  const auto run = [&]<class T, class C>() {
    if (size.k == 0) {
      if (options.beta == 0) std::fill_n(c.data<C>(), c.numel(), C());
      return;
    }
    kernel::multiply(cpu(c), size, kernel::operand<T>(a, options.transpose_a),
                     kernel::operand<T>(b, options.transpose_b), options.beta, c.data<C>());
  };
  on_float(a.dtype(), [&]<class T>() {
    if (c.dtype() == a.dtype()) {
      run.template operator()<T, T>();
    } else if constexpr (kIsLowPrecision<T>) {
      run.template operator()<T, float>();
    }
  });
}

// Grouped GEMMs. A row's result must not depend on the size of its group, so groups do not use the path of single
// GEMMs, which is chosen by size.

namespace kernel {
namespace {

/// One GEMM per group.
template <class T, class C>
using Gemms = std::vector<Gemm<T, C>>;

/// Computes the GEMMs one after another, each with all threads.
template <class T, class C, class Run>
void run_sequentially(CpuDevice& device, const Gemms<T, C>& gemms, Run&& run) {
  for (const Gemm<T, C>& x : gemms)
    if (x.size.m > 0) run(device, x.size, x.a, x.b, x.beta, x.c);
}

template <class T, class C>
void multiply(CpuDevice& device, const Gemms<T, C>& gemms) {
  if constexpr (std::is_same_v<T, double>) {
    return run_sequentially(device, gemms, gemm_f64);
  } else {
    if constexpr (std::is_same_v<T, BFloat16>) {
      const Bf16Path path = device.gemm_cache().choose_bf16_path();
      if (path == Bf16Path::Amx) return run_sequentially(device, gemms, gemm_amx<C>);  // its sums are ordered, too
      if (path == Bf16Path::Dots) return gemm_dot<C>(device, gemms);
    }
    gemm_ordered<T, C>(device, gemms);
  }
}

template <class T, class C>
void grouped_matmul(const Tensor& x, const Tensor& weights, std::span<const i64> rows, Tensor& y, bool transpose) {
  const i64 n = y.dim(1), k = x.dim(1);
  if (k == 0) return void(std::fill_n(y.data<C>(), y.numel(), C()));
  Gemms<T, C> gemms;
  for_each_group(rows, [&](i64 g, i64 first, i64 count) {
    gemms.push_back({.size = {count, n, k},
                     .a = {x.data<T>() + first * k, k},
                     .b = {weights.data<T>() + g * n * k, transpose ? k : n, transpose},
                     .c = y.data<C>() + first * n,
                     .ldc = n});
  });
  multiply(cpu(y), gemms);
}

template <class T, class C>
void grouped_weight_gradient(const Tensor& dy, const Tensor& x, std::span<const i64> rows, Tensor& dw, float beta) {
  const i64 n = dy.dim(1), k = x.dim(1);
  Gemms<T, C> gemms;
  for_each_group(rows, [&](i64 g, i64 first, i64 count) {
    C* c = dw.data<C>() + g * n * k;
    if (count > 0) {
      gemms.push_back({.size = {n, k, count},
                       .a = {dy.data<T>() + first * n, n, true},
                       .b = {x.data<T>() + first * k, k},
                       .c = c,
                       .ldc = k,
                       .beta = beta});
    } else if (beta == 0) {
      std::fill_n(c, n * k, C());
    }
  });
  multiply(cpu(dw), gemms);
}

/// Calls f.template operator()<T, C>() with the types of factors and GEMMs.
template <class F>
void on_types(DType in, DType out, F&& f) {
  on_float(in, [&]<class T>() {
    if (out == in) {
      f.template operator()<T, T>();
    } else if constexpr (kIsLowPrecision<T>) {
      f.template operator()<T, float>();
    }
  });
}

}  // namespace
}  // namespace kernel

template <>
void Kernels<DeviceType::Cpu>::grouped_matmul(const Tensor& x, const Tensor& weights, std::span<const i64> rows,
                                              Tensor& y, bool transpose_weights) {
  if (y.numel() == 0) return;
  kernel::on_types(x.dtype(), y.dtype(),
                   [&]<class T, class C>() { kernel::grouped_matmul<T, C>(x, weights, rows, y, transpose_weights); });
}

template <>
void Kernels<DeviceType::Cpu>::grouped_weight_gradient(const Tensor& dy, const Tensor& x, std::span<const i64> rows,
                                                       Tensor& dw, float beta) {
  if (dw.numel() == 0) return;
  kernel::on_types(dy.dtype(), dw.dtype(),
                   [&]<class T, class C>() { kernel::grouped_weight_gradient<T, C>(dy, x, rows, dw, beta); });
}

}  // namespace mcpp
