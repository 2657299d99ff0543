// Matrix products on the CPU: c[M, N] = op(a) op(b) + beta c on plain pointers. One function per way of computing, and
// the choice among them. All of them cut the work so that no bit of the result depends on the number of threads.
#pragma once
#include <dnnl.hpp>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tensor/cpu/simd/bf16_path.h"
#include "tensor/device.h"
#include "tensor/dtype.h"

namespace mcpp {
namespace kernel {

/// A row-major matrix as an operand. `transposed`: op(x) is the transpose of what is stored.
template <class T>
struct Operand {
  const T* data = nullptr;
  i64 ld = 0;  ///< elements from one stored row to the next
  bool transposed = false;

  /// op(x)[row, column].
  const T* at(i64 row, i64 column) const { return data + (transposed ? column * ld + row : row * ld + column); }
};

struct GemmSize {
  i64 m = 0, n = 0, k = 0;
};

/// Whether oneDNN's sgemm is to be used, under the limit that is set: with AVX-512. Its kernels for AVX (of 2.6 at
/// least) keep a pointer into the operands in the stack pointer while they compute, so that any signal that the thread
/// takes meanwhile overwrites what lies there; and there a row of c depends on how many rows c has.
bool can_use_sgemm();
/// fp32 through oneDNN's sgemm.
void gemm_f32(CpuDevice& device, GemmSize size, Operand<float> a, Operand<float> b, float beta, float* c);
/// A narrow type widened to fp32 block by block. C is float or T, which is rounded once. fp16's way with
/// sgemm: this oneDNN multiplies no halves.
template <class T, class C>
void gemm_widened(CpuDevice& device, GemmSize size, Operand<T> a, Operand<T> b, float beta, C* c);
/// bf16 on AMX tiles; needs can_take(Bf16Path::Amx).
template <class C>
void gemm_amx(CpuDevice& device, GemmSize size, Operand<BFloat16> a, Operand<BFloat16> b, float beta, C* c);
/// bf16 by oneDNN's primitives; needs can_take(Bf16Path::Dots).
template <class C>
void gemm_onednn(CpuDevice& device, GemmSize size, Operand<BFloat16> a, Operand<BFloat16> b, float beta, C* c);
/// Few rows of a times b^T, both dense: for size.m up to kFewRows. fp32, or a narrow type with C float or T.
template <class T, class C>
void gemm_rows(const CpuDevice& device, GemmSize size, const T* a, const T* b, float beta, C* c);
inline constexpr i64 kFewRows = 4;
/// c = op(a) op(b) + beta c, in which rows of c lie ldc apart.
template <class T, class C>
struct Product {
  GemmSize size;
  Operand<T> a, b;
  C* c = nullptr;
  i64 ldc = 0;
  float beta = 0;
};
/// Several products, in which each element of c is a sum over k in ascending order: what a row of c is depends on
/// nothing but its row of a. c is dense. fp32, or a narrow type with C float or T.
template <class T, class C>
void gemm_ordered(CpuDevice& device, std::span<const Product<T, C>> products);
/// The same for bf16 by its dot products; needs can_take(Bf16Path::Dots).
template <class C>
void gemm_dot(CpuDevice& device, std::span<const Product<BFloat16, C>> products);
/// fp64, for gradient checks: simple loops.
void gemm_f64(const CpuDevice& device, GemmSize size, Operand<double> a, Operand<double> b, float beta, double* c);

/// oneDNN's compiled kernels, apart for each thread: creating one takes as long as a small product.
struct OneDnnKernels;
class OneDnnCache {
 public:
  OneDnnCache();
  ~OneDnnCache();
  /// Before the threads start: makes room for this many.
  void reserve(int threads);
  OneDnnKernels& of_thread(int thread);

 private:
  std::vector<std::unique_ptr<OneDnnKernels>> threads_;
};

}  // namespace kernel

/// What a CpuDevice keeps for its products.
struct GemmCache {
  std::optional<kernel::Bf16Path> bf16_path;  ///< set by the first product, or by a test before it
  std::optional<bool> sgemm;                  ///< the same
  kernel::OneDnnCache onednn;

  /// Asked for by products alone: the answer settles which instructions this process may use, and ranks exchange texts
  /// through a device before that is configured.
  kernel::Bf16Path choose_bf16_path() {
    if (!bf16_path) bf16_path = kernel::best_bf16_path();
    return *bf16_path;
  }
  bool choose_sgemm() {
    if (!sgemm) sgemm = kernel::can_use_sgemm();
    return *sgemm;
  }
};

}  // namespace mcpp
