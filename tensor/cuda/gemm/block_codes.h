// Conversion of matrices to block-scaled fp8 and NVFP4, for cuBLASLt's block-scaled GEMMs. Layouts of scales:
// NVIDIA, "cuBLAS" (CUDA 13), sections "16/32-Element 1D Block Scaling" and "128-Element 1D and 128x128 2D Block
// Scaling".
#pragma once
#include "base/integer_math.h"
#include "tensor/cuda/device.h"
#include "tensor/ops/low_precision/nvfp4.h"

namespace mcpp {

/// Elements of a matrix [rows, columns] that share a scale, where GEMMs sum over columns, and the layout of the scales.
enum class BlockScales : u8 {
  Vector128,  ///< 128 elements of a row; fp32 [blocks of a row, rows]
  Square128,  ///< 128 x 128 elements; fp32 [blocks of rows, blocks of a row rounded up to a multiple of 4]
  Vector32,   ///< 32 elements of a row; E8M0, tiled
  Vector16,   ///< 16 elements of a row; E4M3, tiled
};

constexpr i64 columns_per_scale(BlockScales scales) {
  return scales == BlockScales::Vector16 ? 16 : scales == BlockScales::Vector32 ? 32 : 128;
}
constexpr bool has_fp32_scales(BlockScales scales) {
  return scales == BlockScales::Vector128 || scales == BlockScales::Square128;
}

/// Shape of a matrix in codes. A row of codes is padded to a multiple of 16 elements.
struct EncodedShape {
  BlockScales scales;
  i64 rows, columns;

  constexpr i64 blocks() const { return ceil_div(columns, columns_per_scale(scales)); }
  constexpr i64 padded_blocks() const { return scales == BlockScales::Vector128 ? blocks() : round_up(blocks(), 4); }
  constexpr i64 code_bytes_of_row() const { return round_up(columns, 16) / (scales == BlockScales::Vector16 ? 2 : 1); }
  /// Returns the number of scales in memory, including padding.
  constexpr i64 scale_count() const {
    if (scales == BlockScales::Vector128) return rows * blocks();
    const i64 tiles = ceil_div(rows, 128);
    return (scales == BlockScales::Square128 ? tiles : tiles * 128) * padded_blocks();
  }
  /// Returns the bytes of these scales.
  constexpr i64 scale_bytes() const { return scale_count() * (has_fp32_scales(scales) ? 4 : 1); }
  constexpr bool has_padded_scales() const {
    return scales != BlockScales::Vector128 &&
           (padded_blocks() != blocks() || (scales != BlockScales::Square128 && rows % 128 != 0));
  }
  /// Returns the index of the scale of a block of a row. Tiles of 128 rows x 4 blocks are stored one after the other in
  /// row-major order; within a tile, rows 0, 32, 64 and 96 are adjacent, then rows 1, 33, 65 and 97, and so on.
  constexpr i64 scale_index(i64 row, i64 block) const {
    if (scales == BlockScales::Vector128) return block * rows + row;
    if (scales == BlockScales::Square128) return row / 128 * padded_blocks() + block;
    const i64 tile = row / 128 * 128 * padded_blocks() + block / 4 * 4 * 128;
    return tile + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
  }
};

/// Matrix on a GPU that is encoded in blocks, in workspace memory. Kernels run on the stream of the device, without
/// waiting for it.
class BlockCodes {
 public:
  /// Encodes x, a bf16 matrix, or its transpose. The blocks of `scale` must have the shape that a recipe defines.
  /// Blocks that are vectors must be parts of rows of the encoded matrix.
  BlockCodes(const Tensor& x, const Fp8Scale& scale, bool transposed);
  BlockCodes(const Tensor& x, const Nvfp4Scale& scale, bool transposed);

  /// Writes the elements times the scales of their blocks to y, bf16 [rows, columns], or its transpose.
  void decode(Tensor& y, bool transposed) const;

  const EncodedShape& shape() const { return shape_; }
  Fp8Format format() const { return format_; }
  const void* codes() const { return codes_.data(); }
  const void* scales() const { return scales_.data(); }

 private:
  BlockCodes(const Tensor& x, BlockScales scales, Fp8Format format, bool transposed);
  CudaDevice& device() const { return static_cast<CudaDevice&>(codes_.device()); }

  EncodedShape shape_;
  Fp8Format format_;
  Buffer codes_, scales_;
};

/// Writes x, rounded in blocks of a recipe, to y, both bf16 matrices. Blocks of one column lie along rows.
template <class Scale>
void round_blocks(const Tensor& x, const Scale& scale, Tensor& y) {
  const bool is_transposed = scale.block.columns == 1;
  BlockCodes(x, scale, is_transposed).decode(y, is_transposed);
}

}  // namespace mcpp
