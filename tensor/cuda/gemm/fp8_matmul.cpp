// GEMMs in fp8. Hopper's kernels require both factors contiguous along the contraction, a as [m, k] and b as [n, k];
// a factor in the other layout is transposed as it is rounded.
#include "tensor/cuda/gemm/block_matmul.h"
#include "tensor/cuda/gemm/fp8_codes.h"
#include "tensor/ops/low_precision/recipe.h"

namespace mcpp {
namespace {

constexpr int kMinComputeCapabilityMajor = 8, kMinComputeCapabilityMinor = 9;

/// Memory for the two factors, each aligned as the library may require.
constexpr i64 kUnscaleBytes = 16;

/// Computes c = op(a) op(b) + beta c with a scale per matrix. c is aligned.
void multiply_tensors(const Tensor& a, const Fp8Scale& a_scale, const Tensor& b, const Fp8Scale& b_scale, Tensor& c,
                      const ops::MatmulOptions& options) {
  CudaDevice& device = cuda(c);
  const Buffer a_codes(a.numel(), device, MemoryClass::Workspace), b_codes(b.numel(), device, MemoryClass::Workspace),
      unscales(2 * kUnscaleBytes, device, MemoryClass::Workspace);
  const auto codes = [](const Buffer& buffer) { return reinterpret_cast<u8*>(buffer.data()); };
  const auto unscale = [&](i64 of) { return reinterpret_cast<float*>(unscales.data() + of * kUnscaleBytes); };
  write_fp8_codes(a, a_scale, options.transpose_a, {codes(a_codes), unscale(0)});
  write_fp8_codes(b, b_scale, !options.transpose_b, {codes(b_codes), unscale(1)});
  const Operands x{codes(a_codes), codes(b_codes), c.raw(), unscale(0), unscale(1)};
  multiply({.in = DType::BF16,
            .out = c.dtype(),
            .transpose_b = true,
            .accumulate = options.beta != 0,
            .m = c.dim(0),
            .n = c.dim(1),
            .k = a.dim(options.transpose_a ? 0 : 1),
            .alignment = gemm_alignment(x.a, x.b, x.c),
            .fp8 = a_scale.format == Fp8Format::E5M2 ? GemmFp8::E5m2 : GemmFp8::E4m3},
           x, device);
}

}  // namespace

template <>
void Fp8Kernels<DeviceType::Cuda>::matmul(const Tensor& a, const Fp8Scale& a_scale, const Tensor& b,
                                          const Fp8Scale& b_scale, Tensor& c, const ops::MatmulOptions& options) {
  MCPP_CHECK(a_scale.block.is_defined() == b_scale.block.is_defined(),
             "fp8_matmul: scales of a full matrix and of blocks");
  if (a_scale.block.is_defined()) return multiply_fp8_blocks(a, a_scale, b, b_scale, c, options);
  const i64 m = c.dim(0), n = c.dim(1), k = a.dim(options.transpose_a ? 0 : 1);
  if (m * n == 0 || k == 0) return Kernels<DeviceType::Cuda>::matmul(a, b, c, options);
  constexpr i64 kMultiple = gpu_size_multiple(GemmRecipe::Tensorwise);
  MCPP_CHECK(m % kMultiple == 0 && n % kMultiple == 0 && k % kMultiple == 0, "fp8_matmul: [", m, ", ", k, "] times [",
             k, ", ", n, "]: sizes must be multiples of ", kMultiple);
  with_aligned_output(c, options, [&](Tensor& aligned) { multiply_tensors(a, a_scale, b, b_scale, aligned, options); });
}

template <>
std::string Fp8Kernels<DeviceType::Cuda>::problem(const Device& device) {
  const cudaDeviceProp& gpu = static_cast<const CudaDevice&>(device).properties();
  if (gpu.major > kMinComputeCapabilityMajor ||
      (gpu.major == kMinComputeCapabilityMajor && gpu.minor >= kMinComputeCapabilityMinor))
    return "";
  return str("the GPU ", gpu.name, " has compute capability ", gpu.major, ".", gpu.minor, "; GEMMs in fp8 need ",
             kMinComputeCapabilityMajor, ".", kMinComputeCapabilityMinor);
}

}  // namespace mcpp
