// ops::matmul on the CPU: selects the implementation by dtype and processor features.
#include <algorithm>

#include "tensor/cpu/gemm/gemm.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace kernel {
namespace {

template <class T>
Operand<T> operand(const Tensor& x, bool transposed) {
  return {x.data<T>(), x.dim(1), transposed};
}

/// Returns true if ordered sums are faster than sgemm, by up to 2.5 times with few rows and 5 % with many: for a b^T
/// with rows of b a multiple of 2 KiB apart, where sgemm reads rows that share L1 cache lines. For very few rows it
/// does not. Apart from that independent of the number of rows, so that no row's result depends on others.
template <class T>
bool is_ordered_gemm_faster(GemmSize size, Operand<T> a, Operand<T> b) {
  constexpr i64 kOwnKernel = 12;  // maximum rows of sgemm's special kernel
  return std::is_same_v<T, float> && !a.transposed && b.transposed && b.ld % 512 == 0 && size.m > kOwnKernel;
}

/// Multiplies with oneDNN's sgemm, or with ordered sums where sgemm is slower or unsafe.
template <class T, class C>
void multiply_in_f32(CpuDevice& device, GemmSize size, Operand<T> a, Operand<T> b, float beta, C* c) {
  if (!device.gemm_cache().choose_sgemm() || is_ordered_gemm_faster(size, a, b)) {
    const Product<T, C> product{size, a, b, c, size.n, beta};
    return gemm_ordered<T, C>(device, {&product, 1});
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

template <class T, class C>
void multiply(CpuDevice& device, GemmSize size, Operand<T> a, Operand<T> b, float beta, C* c) {
  if constexpr (std::is_same_v<T, double>) {
    gemm_f64(device, size, a, b, beta, c);
  } else if (size.m <= kFewRows && !a.transposed && b.transposed) {
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

}  // namespace mcpp
