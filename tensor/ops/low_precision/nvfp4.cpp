#include "tensor/ops/low_precision/nvfp4.h"

#include <algorithm>
#include <cmath>

#include "tensor/on_device.h"
#include "tensor/ops/checks.h"
#include "tensor/ops/op_records.h"

namespace mcpp {

float nvfp4_matrix_scale(float amax, float headroom) {
  if (!std::isfinite(amax)) return std::numeric_limits<float>::quiet_NaN();
  // Values below 2^-100 do not occur in training.
  return std::max(amax * headroom, power_of_two(-kMaxFp8ScaleExponent)) / (kNvfp4MaxScale * kE2m1Max);
}

namespace ops {
namespace {

void check_matrix(const char* op, const Tensor& x) {
  MCPP_CHECK(x.dtype() == DType::BF16 && x.rank() == 2, op, ": expected a bf16 matrix, not ", name_of(x.dtype()), " ",
             x.shape());
  MCPP_CHECK(x.device().type() != DeviceType::Cuda, op, ": needs a CPU");
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

/// Calls f with the CPU's kernels, the only ones.
template <class F>
void on_cpu(const Tensor& t, const auto& describe, F&& f) {
  on_device(t, describe, [&]<DeviceType D>() {
    if constexpr (D == DeviceType::Cpu) f();
  });
}

}  // namespace

void round_to_nvfp4(const Tensor& x, const Nvfp4Scale& scale, Tensor& y) {
  check_nvfp4_scale("round_to_nvfp4", x, scale);
  check_same("round_to_nvfp4", "y", y, x);
  on_cpu(
      x, [&] { return element_record(OpKind::Quantize, x.numel()); },
      [&] { Nvfp4Kernels<DeviceType::Cpu>::round_to_nvfp4(x, scale, y); });
}

void nvfp4_matmul(const Tensor& a, const Nvfp4Scale& a_scale, const Tensor& b, const Nvfp4Scale& b_scale, Tensor& c,
                  const MatmulOptions& options) {
  check_nvfp4_scale("nvfp4_matmul", a, a_scale);
  check_nvfp4_scale("nvfp4_matmul", b, b_scale);
  check_matmul("nvfp4_matmul", a, b, c, options);
  const auto describe = [&] {
    OpRecord record = matmul_record(a, b, c, options);
    record.is_fp8 = true;
    return record;
  };
  on_cpu(c, describe, [&] { Nvfp4Kernels<DeviceType::Cpu>::matmul(a, a_scale, b, b_scale, c, options); });
}

void random_hadamard(const Tensor& x, u32 signs, Tensor& y) {
  check_matrix("random_hadamard", x);
  check_same("random_hadamard", "y", y, x);
  on_cpu(
      x,
      [&] {
        return memory_record({&x, &y});
      },
      [&] { Nvfp4Kernels<DeviceType::Cpu>::random_hadamard(x, signs, y); });
}

}  // namespace ops
}  // namespace mcpp
