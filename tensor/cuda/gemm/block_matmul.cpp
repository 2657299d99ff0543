#include "tensor/cuda/gemm/block_matmul.h"

#include "tensor/ops/low_precision/recipe_support.h"

namespace mcpp {
namespace {

using CudaKernels = Kernels<DeviceType::Cuda>;

/// Returns the reason why the library has no mode for a block-scaled recipe on this GPU, or "".
std::string missing_mode(const CudaDevice& device, GemmRecipe recipe) {
  const cudaDeviceProp& gpu = device.properties();
  const bool is_hopper = gpu.major == 9 && gpu.minor == 0;
  if (recipe == GemmRecipe::Blockwise ? is_hopper : gpu.major >= 10) return "";
  return str("the GPU ", gpu.name, " has compute capability ", gpu.major, ".", gpu.minor, ", and cuBLASLt's GEMMs for ",
             enum_name(recipe), " need ", recipe == GemmRecipe::Blockwise ? "9.0" : "10.0 or later");
}

/// Returns the mode for two operands, c = a b^T; None if the library has none.
GemmBlocks mode_of(BlockScales a, BlockScales b) {
  if (a == BlockScales::Vector16 && b == a) return GemmBlocks::Nvfp4;
  if (a == BlockScales::Vector32 && b == a) return GemmBlocks::Mxfp8;
  if (a == BlockScales::Vector128 && b == a) return GemmBlocks::BlockwiseVectors;
  if (a == BlockScales::Vector128 && b == BlockScales::Square128) return GemmBlocks::Blockwise;
  return GemmBlocks::None;
}

GemmRecipe recipe_of(GemmBlocks mode) {
  if (mode == GemmBlocks::Nvfp4) return GemmRecipe::Nvfp4;
  return mode == GemmBlocks::Mxfp8 ? GemmRecipe::Mxfp8 : GemmRecipe::Blockwise;
}

/// Returns the mode with which the GPU multiplies a and b, or None if it emulates their product.
GemmBlocks supported_mode(const BlockCodes& a, const BlockCodes& b, const CudaDevice& device) {
  const GemmBlocks mode = mode_of(a.shape().scales, b.shape().scales);
  if (mode == GemmBlocks::None || !missing_mode(device, recipe_of(mode)).empty()) return GemmBlocks::None;
  const i64 multiple = gpu_size_multiple(recipe_of(mode));
  for (const i64 size : {a.shape().rows, b.shape().rows, a.shape().columns})
    if (size % multiple != 0) return GemmBlocks::None;
  return mode;
}

/// Computes c = a b^T + beta c, for nvfp4 times factors[0]. c is aligned.
void multiply_codes(GemmBlocks mode, const BlockCodes& a, const BlockCodes& b, const Tensor* factors, float beta,
                    Tensor& c) {
  const GemmFp8 fp8 = a.format() == Fp8Format::E5M2 ? GemmFp8::E5m2 : GemmFp8::E4m3;
  multiply({.in = DType::BF16,
            .out = c.dtype(),
            .transpose_b = true,
            .accumulate = beta != 0,
            .m = a.shape().rows,
            .n = b.shape().rows,
            .k = a.shape().columns,
            .alignment = gemm_alignment(a.codes(), b.codes(), c.raw()),
            .fp8 = mode == GemmBlocks::Nvfp4 ? GemmFp8::None : fp8,
            .blocks = mode},
           {.a = a.codes(),
            .b = b.codes(),
            .c = c.raw(),
            .a_scales = a.scales(),
            .b_scales = b.scales(),
            .factors = factors ? factors->data<float>() : nullptr},
           cuda(c));
}

Tensor decoded(const BlockCodes& x, Device& device) {
  Tensor y = Tensor::empty({x.shape().rows, x.shape().columns}, DType::BF16, device, MemoryClass::Workspace);
  x.decode(y, false);
  return y;
}

/// Computes c = a b^T + beta c from decoded operands.
void multiply_decoded(const BlockCodes& a, const BlockCodes& b, float beta, Tensor& c) {
  CudaKernels::matmul(decoded(a, c.device()), decoded(b, c.device()), c, {.transpose_b = true, .beta = beta});
}

/// Returns true if nothing is multiplied; c then has its result.
bool is_empty_product(const Tensor& a, Tensor& c, const ops::MatmulOptions& options) {
  if (c.numel() > 0 && a.numel() > 0) return false;
  if (c.numel() > 0 && options.beta == 0) CudaKernels::fill_zero(c);
  return true;
}

}  // namespace

void multiply_fp8_blocks(const Tensor& a, const Fp8Scale& a_scale, const Tensor& b, const Fp8Scale& b_scale, Tensor& c,
                         const ops::MatmulOptions& options) {
  if (is_empty_product(a, c, options)) return;
  const BlockCodes a_codes(a, a_scale, options.transpose_a), b_codes(b, b_scale, !options.transpose_b);
  const GemmBlocks mode = supported_mode(a_codes, b_codes, cuda(c));
  if (mode == GemmBlocks::None) return multiply_decoded(a_codes, b_codes, options.beta, c);
  with_aligned_output(c, options,
                      [&](Tensor& aligned) { multiply_codes(mode, a_codes, b_codes, nullptr, options.beta, aligned); });
}

template <>
void Nvfp4Kernels<DeviceType::Cuda>::matmul(const Tensor& a, const Nvfp4Scale& a_scale, const Tensor& b,
                                            const Nvfp4Scale& b_scale, Tensor& c, const ops::MatmulOptions& options) {
  if (is_empty_product(a, c, options)) return;
  CudaDevice& device = cuda(c);
  const BlockCodes a_codes(a, a_scale, options.transpose_a), b_codes(b, b_scale, !options.transpose_b);
  Tensor factors = Tensor::empty({2}, DType::F32, device, MemoryClass::Workspace);
  write_nvfp4_factors(a_scale, b_scale, options.beta, factors);
  const GemmBlocks mode = supported_mode(a_codes, b_codes, device);
  if (mode != GemmBlocks::None)
    return with_aligned_output(
        c, options, [&](Tensor& aligned) { multiply_codes(mode, a_codes, b_codes, &factors, options.beta, aligned); });
  Tensor product = Tensor::empty(c.shape(), DType::F32, device, MemoryClass::Workspace);
  multiply_decoded(a_codes, b_codes, 0, product);
  add_scaled_product(product, factors, c);
}

template <>
void Nvfp4Kernels<DeviceType::Cuda>::round_to_nvfp4(const Tensor& x, const Nvfp4Scale& scale, Tensor& y) {
  round_blocks(x, scale, y);
}

template <>
std::string RecipeSupport<DeviceType::Cuda>::emulation_reason(const Device& device, GemmRecipe recipe) {
  return missing_mode(static_cast<const CudaDevice&>(device), recipe);
}

}  // namespace mcpp
