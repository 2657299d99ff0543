#include "tensor/ops/low_precision/fp8.h"

#include <algorithm>

#include "tensor/on_device.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/low_precision/recipe.h"
#include "tensor/ops/op_records.h"

namespace mcpp::ops {
namespace {

void check_amax(const char* op, const Tensor& amax) {
  MCPP_CHECK(amax.defined() && amax.numel() == 1 && amax.dtype() == DType::F32, op, ": amax must be fp32 [1]");
}

void check_bf16(const char* op, const Tensor& x) {
  MCPP_CHECK(x.dtype() == DType::BF16, op, ": expected bf16, not ", name_of(x.dtype()));
}

/// Checks the scale of x, which needs either the largest magnitude or blocks.
void check_scale(const char* op, const Tensor& x, const Fp8Scale& scale) {
  if (!scale.block.is_defined()) return check_amax(op, scale.amax);
  MCPP_CHECK(!scale.amax.defined(), op, ": blocks compute their own amax");
  MCPP_CHECK(scale.block.columns > 0 && x.rank() == 2, op, ": blocks need a matrix, not ", x.shape());
}

/// Returns the recipe with these blocks.
GemmRecipe recipe_with(const BlockShape& block) {
  if (!block.is_defined()) return GemmRecipe::Tensorwise;
  return std::max(block.rows, block.columns) == block_size(GemmRecipe::Mxfp8) ? GemmRecipe::Mxfp8
                                                                              : GemmRecipe::Blockwise;
}

}  // namespace

void add_amax(const Tensor& x, Tensor& amax) {
  check_bf16("add_amax", x);
  check_amax("add_amax", amax);
  on_device(
      x, [&] { return element_record(OpKind::Quantize, x.numel()); },
      [&]<DeviceType D>() { Fp8Kernels<D>::add_amax(x, amax); });
}

void round_to_fp8(const Tensor& x, const Fp8Scale& scale, Tensor& y) {
  check_bf16("round_to_fp8", x);
  check_bf16("round_to_fp8", y);
  check_scale("round_to_fp8", x, scale);
  MCPP_CHECK(x.numel() == y.numel(), "round_to_fp8: sizes of x ", x.shape(), " and y ", y.shape(), " differ");
  on_device(x, [&]<DeviceType D>() { Fp8Kernels<D>::round_to_fp8(x, scale, y); });
}

void fp8_matmul(const Tensor& a, const Fp8Scale& a_scale, const Tensor& b, const Fp8Scale& b_scale, Tensor& c,
                const MatmulOptions& options) {
  for (const Tensor* t : {&a, &b}) check_bf16("fp8_matmul", *t);
  check_scale("fp8_matmul", a, a_scale);
  check_scale("fp8_matmul", b, b_scale);
  MCPP_CHECK(b_scale.format == Fp8Format::E4M3, "fp8_matmul: the second operand must be in E4M3");
  check_matmul("fp8_matmul", a, b, c, options);
  const auto describe = [&] {
    OpRecord record = matmul_record(a, b, c, options);
    record.recipe = recipe_with(a_scale.block);
    return record;
  };
  on_device(c, describe, [&]<DeviceType D>() { Fp8Kernels<D>::matmul(a, a_scale, b, b_scale, c, options); });
}

std::string fp8_unsupported_reason(const Device& device) {
  return on_device(device.type(), [&]<DeviceType D>() { return Fp8Kernels<D>::problem(device); });
}

}  // namespace mcpp::ops
