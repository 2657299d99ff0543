// Ops of low-rank gradient compression in addition to GEMMs (parallel/dp/power_sgd.h).
#pragma once
#include <bit>

#include "tensor/tensor.h"

namespace mcpp {

/// Returns a pseudo-random +1 or -1: an element of the replacement for a linearly dependent column.
constexpr float random_sign(i64 row, i64 column, int attempt) {
  u32 h = static_cast<u32>(row) * 0x9E3779B9U ^ static_cast<u32>(column + 1) * 0x85EBCA6BU ^
          static_cast<u32>(attempt) * 0xC2B2AE35U;
  h = (h ^ h >> 16) * 0x7FEB352DU;
  h = (h ^ h >> 15) * 0x846CA68BU;
  return (h >> 16 & 1) != 0 ? 1.0F : -1.0F;
}
/// Relative length below which a column, after removing its projections on the others, is considered rounding error.
inline constexpr double kMinRelativeResidual = 1e-4;
inline constexpr int kDirectionAttempts = 4;

namespace ops {

/// Orthonormalizes the columns of x, fp32 or fp64 [n, r] with r <= n, from first to last (Gram-Schmidt, twice). A
/// column that is 0 or linearly dependent on earlier ones is replaced by a fixed pseudo-random direction. NaN is
/// preserved.
void orthonormalize(Tensor& x);
/// Copies `from` to `to`, both fp32 or fp64, if `factor`, fp64 [1], is finite.
void copy_if_finite(const Tensor& from, Tensor& to, const Tensor& factor);

}  // namespace ops

/// Backend implementations, as in Kernels.
template <DeviceType D>
struct LowRankKernels {
  static void orthonormalize(Tensor& x);
  static void copy_if_finite(const Tensor& from, Tensor& to, const Tensor& factor);
};

}  // namespace mcpp
