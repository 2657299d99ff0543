#include "tensor/ops/low_precision/nvfp4.h"

#include "tensor/on_device.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/op_records.h"

namespace mcpp {

namespace ops {
namespace {

void check_matrix(const char* op, const Tensor& x) {
  MCPP_CHECK(x.dtype() == DType::BF16 && x.rank() == 2, op, ": expected a bf16 matrix, not ", name_of(x.dtype()), " ",
             x.shape());
}

void check_nvfp4_scale(const char* op, const Tensor& x, const Nvfp4Scale& scale) {
  check_matrix(op, x);
  MCPP_CHECK(scale.amax.defined() && scale.amax.numel() == 1 && scale.amax.dtype() == DType::F32, op,
             ": amax must be fp32 [1]");
  const BlockShape& block = scale.block;
  MCPP_CHECK(block.rows >= 1 && block.rows <= kNvfp4Block && (block.columns == 1 || block.columns == kNvfp4Block), op,
             ": no blocks of ", block.rows, " x ", block.columns);
  if (!scale.stochastic) return;
  const auto b = std::ssize(scale.stochastic->samples);
  MCPP_CHECK(b > 0 && x.dim(0) % b == 0, op, ": ", x.dim(0), " rows do not belong to ", b, " samples");
  i64 columns = 0;
  for (const ColumnRun& run : scale.stochastic->columns) {
    MCPP_CHECK(run.first == columns, op, ": column runs must be consecutive");
    columns += run.count;
  }
  MCPP_CHECK(columns == x.dim(1), op, ": runs of ", columns, " columns for ", x.dim(1));
}

}  // namespace

void round_to_nvfp4(const Tensor& x, const Nvfp4Scale& scale, Tensor& y) {
  check_nvfp4_scale("round_to_nvfp4", x, scale);
  check_same("round_to_nvfp4", "y", y, x);
  on_device(
      x, [&] { return element_record(OpKind::Quantize, x.numel()); },
      [&]<DeviceType D>() { Nvfp4Kernels<D>::round_to_nvfp4(x, scale, y); });
}

void nvfp4_matmul(const Tensor& a, const Nvfp4Scale& a_scale, const Tensor& b, const Nvfp4Scale& b_scale, Tensor& c,
                  const MatmulOptions& options) {
  check_nvfp4_scale("nvfp4_matmul", a, a_scale);
  check_nvfp4_scale("nvfp4_matmul", b, b_scale);
  check_matmul("nvfp4_matmul", a, b, c, options);
  const auto describe = [&] {
    OpRecord record = matmul_record(a, b, c, options);
    record.recipe = GemmRecipe::Nvfp4;
    return record;
  };
  on_device(c, describe, [&]<DeviceType D>() { Nvfp4Kernels<D>::matmul(a, a_scale, b, b_scale, c, options); });
}

void random_hadamard(const Tensor& x, u32 signs, Tensor& y) {
  check_matrix("random_hadamard", x);
  check_same("random_hadamard", "y", y, x);
  on_device(
      x,
      [&] {
        return memory_record({&x, &y});
      },
      [&]<DeviceType D>() { Nvfp4Kernels<D>::random_hadamard(x, signs, y); });
}

}  // namespace ops
}  // namespace mcpp
