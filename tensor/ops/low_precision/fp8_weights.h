// Messages of weights in fp8, for layers whose GEMMs round them to E4M3 in any case. The scale of an element is that of
// its block of the full weight, so a weight that arrives rounded stays as it is when the GEMM rounds it again, and
// results are bitwise identical to those with weights in bf16.
//
// The format is the same as in pack.h: 64 elements and their scale in kPackedWords words, with codes of E4M3 instead of
// int8.
#pragma once
#include "tensor/ops/low_precision/fp8.h"
#include "tensor/ops/low_precision/pack.h"

namespace mcpp {

/// Blocks of a weight that share a scale. The weight consists of matrices [rows, columns], row by row; blocks do not
/// straddle matrices. Without blocks, one scale applies to the full weight.
struct WeightBlocks {
  i64 rows = 1, columns = 1;
  BlockShape block = {};

  /// Returns true if groups of kPackedBlock elements lie in one block, as messages require.
  constexpr bool can_pack() const {
    return !block.is_defined() || (columns % kPackedBlock == 0 && block.columns % kPackedBlock == 0);
  }
  constexpr i64 blocks_per_row() const { return (columns + block.columns - 1) / block.columns; }
  /// Returns the number of blocks of a weight of `numel` elements.
  constexpr i64 count(i64 numel) const {
    if (!block.is_defined()) return 1;
    const i64 matrices = numel / (rows * columns);
    return matrices * ((rows + block.rows - 1) / block.rows) * blocks_per_row();
  }
  /// Returns the block of an element.
  constexpr i64 index(i64 element) const {
    if (!block.is_defined()) return 0;
    const i64 row = element / columns, matrix = row / rows, blocks_per_column = (rows + block.rows - 1) / block.rows;
    return (matrix * blocks_per_column + row % rows / block.rows) * blocks_per_row() +
           element % columns / block.columns;
  }
};

/// Elements [first, first + n) of a weight of `numel` elements. `first` and n are multiples of kPackedBlock; elements
/// after the last one of the weight are padding and must be 0.
struct WeightRange {
  WeightBlocks blocks;
  i64 first = 0, numel = 0;

  /// Returns the block of group `group` of kPackedBlock elements of the range.
  constexpr i64 block_of(i64 group) const { return blocks.index(first + group * kPackedBlock); }
};

namespace ops {

/// Updates amax, fp32 [blocks of the weight], to the maximum of itself and the magnitudes of these elements, bf16. The
/// amax of a block with an infinity or NaN is infinite.
void add_weight_amax(const Tensor& x, const WeightRange& range, Tensor& amax);
/// Encodes these elements, bf16, in `message`, int32 [packed_words(n)], with the scales that follow from amax
/// (fp8_scale()).
void pack_fp8_weights(const Tensor& x, const WeightRange& range, const Tensor& amax, Tensor& message);
/// Decodes a message of pack_fp8_weights() into x, bf16.
void unpack_fp8_weights(const Tensor& message, Tensor& x);

}  // namespace ops

/// Backend implementations, as in Kernels.
template <DeviceType D>
struct Fp8WeightKernels {
  static decltype(ops::add_weight_amax) add_amax;
  static decltype(ops::pack_fp8_weights) pack;
  static decltype(ops::unpack_fp8_weights) unpack;
};

}  // namespace mcpp
