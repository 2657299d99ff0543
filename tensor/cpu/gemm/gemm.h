// GEMMs on the CPU: c[M, N] = op(a) op(b) + beta c on plain pointers, with one function per implementation,
// and the choice among them. All of them split the work such that results are bitwise independent of the number of
// threads.
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

/// Row-major matrix operand. `transposed`: op(x) is the transpose of the stored matrix.
template <class T>
struct Operand {
  const T* data = nullptr;
  i64 ld = 0;  ///< distance between stored rows, in elements
  bool transposed = false;

  /// Returns the address of op(x)[row, column].
  const T* at(i64 row, i64 column) const { return data + (transposed ? column * ld + row : row * ld + column); }
};

struct GemmSize {
  i64 m = 0, n = 0, k = 0;
};

/// Returns true if oneDNN's sgemm should be used: AVX-512 is available under the current instruction set limit.
/// oneDNN's AVX kernels (at least in 2.6) store an operand address in the stack pointer, so a signal on the thread
/// overwrites operand memory. The results of these kernels for a row of c also depend on the number of rows.
bool can_use_sgemm();
/// Computes fp32 GEMMs with oneDNN's sgemm.
void gemm_f32(CpuDevice& device, GemmSize size, Operand<float> a, Operand<float> b, float beta, float* c);
/// Computes low-precision GEMMs by converting blocks to fp32. C is float or T, rounded once. Used for fp16 with
/// sgemm, since this oneDNN version does not support fp16 GEMMs.
template <class T, class C>
void gemm_widened(CpuDevice& device, GemmSize size, Operand<T> a, Operand<T> b, float beta, C* c);
/// Computes bf16 GEMMs with AMX tiles; requires can_use(Bf16Path::Amx).
template <class C>
void gemm_amx(CpuDevice& device, GemmSize size, Operand<BFloat16> a, Operand<BFloat16> b, float beta, C* c);
/// Computes bf16 GEMMs with oneDNN primitives; requires can_use(Bf16Path::Dots).
template <class C>
void gemm_onednn(CpuDevice& device, GemmSize size, Operand<BFloat16> a, Operand<BFloat16> b, float beta, C* c);
/// Computes a b^T for few rows of a. a and b are dense, and either fp32, or low precision with C float or T. A row of c
/// does not depend on the number of rows.
template <class T, class C>
void gemm_rows(CpuDevice& device, GemmSize size, const T* a, const T* b, float beta, C* c);
/// Maximum rows for which matmul uses gemm_rows(), and the elements of b from which the second maximum applies.
/// Evaluations pad their batches to more rows, unless the context of the model is shorter.
inline constexpr i64 kFewRows = 4, kFewRowsOfLargeMatrix = 31, kLargeMatrix = 1 << 19;
/// GEMM c = op(a) op(b) + beta c, where ldc is the row stride of c.
template <class T, class C>
struct Gemm {
  GemmSize size;
  Operand<T> a, b;
  C* c = nullptr;
  i64 ldc = 0;
  float beta = 0;
};
/// Computes several GEMMs in which each element of c is a sum over k in ascending order, so that a row of c depends
/// only on its row of a. c is dense. The operands are fp32, or low precision with C float or T.
template <class T, class C>
void gemm_ordered(CpuDevice& device, std::span<const Gemm<T, C>> gemms);
/// Computes GEMMs with ordered sums in bf16 with dot product instructions; requires can_use(Bf16Path::Dots).
template <class C>
void gemm_dot(CpuDevice& device, std::span<const Gemm<BFloat16, C>> gemms);
/// Computes fp64 GEMMs for gradient checks, with simple loops.
void gemm_f64(const CpuDevice& device, GemmSize size, Operand<double> a, Operand<double> b, float beta, double* c);

/// Per-thread cache of oneDNN's compiled kernels. Creating a kernel takes as long as a small GEMM.
struct OneDnnKernels;
class OneDnnCache {
 public:
  OneDnnCache();
  ~OneDnnCache();
  /// Reserves space for `threads` threads; call it before the threads start.
  void reserve(int threads);
  OneDnnKernels& of_thread(int thread);

 private:
  std::vector<std::unique_ptr<OneDnnKernels>> threads_;
};

}  // namespace kernel

/// GEMM state of a CpuDevice.
struct GemmCache {
  std::optional<kernel::Bf16Path> bf16_path;  ///< set by the first GEMM, or earlier by a test
  std::optional<bool> sgemm;                  ///< set like bf16_path
  kernel::OneDnnCache onednn;

  /// Selects the bf16 implementation. Called only by GEMMs: the choice fixes the instruction set of the process, but
  /// ranks use a device to exchange strings before the instruction set is configured.
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
