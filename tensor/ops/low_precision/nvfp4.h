// GEMMs in NVFP4 (NVIDIA, "Pretraining Large Language Models with NVFP4", 2025): E2M1 elements, an E4M3 scale for each
// block of 16 elements, and an fp32 scale for the full matrix.
//
// An element times the scale of its block has at most 6 significant bits, so that bf16 represents it exactly. The CPU
// multiplies these values in bf16 with fp32 sums and scales the result. Scales and rounding are the same as in torchao.
#pragma once
#include <optional>
#include <vector>

#include "tensor/ops/low_precision/fp8.h"

namespace mcpp {

inline constexpr i64 kNvfp4Block = 16;
/// Largest magnitudes of elements and of scales of blocks; smallest scale of a block, the smallest normal E4M3 value.
inline constexpr float kE2m1Max = 6, kNvfp4MaxScale = 448, kNvfp4MinScale = 0x1p-6F;

/// Columns [first, first + count) of a shard that are the columns [global, global + count) of the full matrix.
struct ColumnRun {
  i64 first = 0, global = 0, count = 0;
};

/// Random numbers of stochastic rounding. Row r of a matrix [s * b, n] belongs to samples[r % b] at position r / b, so
/// that they do not depend on the sharding.
struct StochasticRounding {
  u64 key = 0;
  std::vector<i64> samples = {};  ///< [b]
  PositionRanges positions = {};
  std::vector<ColumnRun> columns = {};
};

/// Rounding of a matrix to NVFP4.
struct Nvfp4Scale {
  Tensor amax = {};    ///< fp32 [1]: largest magnitude in the full matrix, across all of its shards
  float headroom = 1;  ///< no magnitude exceeds amax times this power of two
  /// At most 16 elements in each direction; on GPUs 1 x 16, 16 x 1 or 16 x 16, for GEMMs along the contraction.
  BlockShape block = {1, kNvfp4Block};
  /// If not set, rounds to nearest, ties to even. On GPUs not with blocks of 16 x 16.
  std::optional<StochasticRounding> stochastic = {};
};

/// Returns the scale of a full matrix: largest magnitude / (6 x 448). Returns NaN if `amax` is not finite.
constexpr float nvfp4_matrix_scale(float amax, float headroom) {
  constexpr float kSmallest = power_of_two(-kMaxFp8ScaleExponent);  // smaller values do not occur in training
  if ((std::bit_cast<u32>(amax) & 0x7F800000) == 0x7F800000) return std::numeric_limits<float>::quiet_NaN();
  const float largest = amax * headroom;
  return (largest < kSmallest ? kSmallest : largest) / (kNvfp4MaxScale * kE2m1Max);
}

namespace ops {

/// Rounds x to NVFP4 and stores the elements times the scales of their blocks, without the scale of the matrix, in y.
/// Both are bf16 matrices. If the largest magnitude is not finite, y is NaN.
void round_to_nvfp4(const Tensor& x, const Nvfp4Scale& scale, Tensor& y);
/// Computes matmul() of a and b, which are bf16 and are rounded to NVFP4 first. c is bf16 or fp32. Accumulates in fp32
/// and rounds the result once.
void nvfp4_matmul(const Tensor& a, const Nvfp4Scale& a_scale, const Tensor& b, const Nvfp4Scale& b_scale, Tensor& c,
                  const MatmulOptions& options = {});
/// Multiplies each 16 rows of x, from its first row on, by an orthogonal matrix: the Hadamard matrix / 4 after changing
/// the sign of row i if bit i of `signs` is set. Copies the last rows if they are fewer than 16. x and y are bf16
/// matrices. The product dy^T x of two transformed matrices equals the product of the original matrices.
void random_hadamard(const Tensor& x, u32 signs, Tensor& y);

}  // namespace ops

/// Backend implementations, as in Kernels.
template <DeviceType D>
struct Nvfp4Kernels {
  static decltype(ops::round_to_nvfp4) round_to_nvfp4;
  static void matmul(const Tensor& a, const Nvfp4Scale& a_scale, const Tensor& b, const Nvfp4Scale& b_scale, Tensor& c,
                     const ops::MatmulOptions& options);
  static decltype(ops::random_hadamard) random_hadamard;
};

}  // namespace mcpp
