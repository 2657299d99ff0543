// Stochastic rounding to bf16: a value between two neighbors becomes the upper one with the probability that makes its
// expected value exact. Training then needs no master weights, because updates that are smaller than the distance
// between neighbors are kept on average (Zamirai et al., "Revisiting BFloat16 Training", 2020).
//
// Random numbers are keyed by the index of the element in the full tensor, so results do not depend on the sharding.
#pragma once
#include <array>

#include "tensor/tensor.h"

namespace mcpp {

/// Maximum number of axes of a tensor.
inline constexpr std::size_t kMaxStochasticAxes = 8;

/// Elements of a full tensor: those from `first` on, in row-major order, of a box.
struct StochasticElements {
  u64 key = 0;                                 ///< stream of random numbers (philox_key())
  Shape global = {}, offset = {}, shape = {};  ///< full tensor; first index and sizes of the box
  i64 first = 0;
};

/// Rows of a box along its last axis. Element (row, column) of the full tensor, where row counts all other axes, has
/// word column % 4 of Philox(key, {row, row >> 32, 0, column / 4}); its upper half decides the rounding.
struct StochasticRows {
  std::array<i64, kMaxStochasticAxes> global{}, offset{}, shape{};  ///< leading axes, the last one first
  int axes = 0;
  i64 width = 1;         ///< columns of the box
  i64 first_column = 0;  ///< of the box in the full tensor

  /// Returns the row of the full tensor for a row of the box. constexpr so that device code can call it.
  constexpr i64 global_row(i64 row) const {
    i64 result = 0, stride = 1;
    for (int a = 0; a < axes; ++a) {
      const auto axis = static_cast<std::size_t>(a);
      result += (offset[axis] + row % shape[axis]) * stride;
      row /= shape[axis];
      stride *= global[axis];
    }
    return result;
  }
};
StochasticRows stochastic_rows(const StochasticElements& elements);

/// Returns the bits of bf16 for the bits of fp32 and 16 random bits. Values above the maximum become infinite as often
/// as they are rounded up; infinities and NaN are kept.
constexpr u16 stochastic_bf16(u32 bits, u32 random) {
  if ((bits & 0x7F800000) == 0x7F800000) return static_cast<u16>(bits >> 16 | ((bits & 0x7FFFFF) != 0 ? 0x40 : 0));
  return static_cast<u16>((bits + random) >> 16);
}

namespace ops {

/// Rounds x, fp32, to y, bf16; both have the same number of elements, which `elements` locates in the full tensor.
void stochastic_round(const Tensor& x, const StochasticElements& elements, Tensor& y);

}  // namespace ops

/// Backend implementations, as in Kernels.
template <DeviceType D>
struct StochasticRoundKernels {
  static decltype(ops::stochastic_round) stochastic_round;
};

}  // namespace mcpp
