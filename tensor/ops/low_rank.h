// What sums of low rank need beside matrix products (parallel/dp/power_sgd.h).
#pragma once
#include <bit>

#include "tensor/tensor.h"

namespace mcpp {

/// +1 or -1: what takes the place of a column that has no direction of its own.
constexpr float direction(i64 row, i64 column, int attempt) {
  u32 h = static_cast<u32>(row) * 0x9E3779B9U ^ static_cast<u32>(column + 1) * 0x85EBCA6BU ^
          static_cast<u32>(attempt) * 0xC2B2AE35U;
  h = (h ^ h >> 16) * 0x7FEB352DU;
  h = (h ^ h >> 15) * 0x846CA68BU;
  return (h >> 16 & 1) != 0 ? 1.0F : -1.0F;
}
/// Of a column that is not longer than so much of what it was once the others are taken out, what is left is rounding.
inline constexpr double kLeastLeft = 1e-4;
inline constexpr int kDirectionAttempts = 4;

namespace ops {

/// The columns of x, fp32 or fp64 [n, r] with r <= n, become orthonormal, the first ones first (Gram and Schmidt,
/// twice). A column that is 0 or that those before it span becomes another direction, always the same one. NaN stays.
void orthonormalize(Tensor& x);
/// to = from, both fp32 or fp64, if `factor`, fp64 [1], is finite.
void copy_if_finite(const Tensor& from, Tensor& to, const Tensor& factor);

}  // namespace ops

/// As Kernels.
template <DeviceType D>
struct LowRankKernels {
  static void orthonormalize(Tensor& x);
  static void copy_if_finite(const Tensor& from, Tensor& to, const Tensor& factor);
};

}  // namespace mcpp
