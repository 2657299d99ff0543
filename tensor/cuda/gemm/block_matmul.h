// Block-scaled GEMMs: with cuBLASLt's block-scaled modes on GPUs that have them, otherwise
// emulated as on CPUs, in bf16 after rounding.
#pragma once
#include "tensor/cuda/gemm/block_codes.h"
#include "tensor/cuda/gemm/cublas.h"
#include "tensor/ops/kernels.h"

namespace mcpp {

/// Computes matmul() of the bf16 matrices a and b, rounded to fp8 in blocks. c is bf16 or fp32.
void multiply_fp8_blocks(const Tensor& a, const Fp8Scale& a_scale, const Tensor& b, const Fp8Scale& b_scale, Tensor& c,
                         const ops::MatmulOptions& options);

/// Writes the product of the scales of two NVFP4 matrices, and beta, to factors, fp32 [2] on the GPU.
void write_nvfp4_factors(const Nvfp4Scale& a, const Nvfp4Scale& b, float beta, Tensor& factors);
/// Computes c = factors[0] * product + factors[1] * c. product is fp32, c bf16 or fp32.
void add_scaled_product(const Tensor& product, const Tensor& factors, Tensor& c);

/// Bytes to which cuBLASLt requires outputs of low-precision GEMMs to be aligned.
inline constexpr i64 kLowPrecisionAlignment = 16;

/// Calls f(c) with an output that is aligned to kLowPrecisionAlignment: c itself, or workspace that is copied to c.
template <class F>
void with_aligned_output(Tensor& c, const ops::MatmulOptions& options, F&& f) {
  if (gemm_alignment(c.raw()) >= kLowPrecisionAlignment) return f(c);
  Tensor aligned = Tensor::empty(c.shape(), c.dtype(), c.device(), MemoryClass::Workspace);
  if (options.beta != 0) Kernels<DeviceType::Cuda>::copy(c, aligned);
  f(aligned);
  Kernels<DeviceType::Cuda>::copy(aligned, c);
}

}  // namespace mcpp
