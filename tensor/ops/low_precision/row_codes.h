// Rows of matrices in fp8, for messages between ranks. A row is encoded as its codes, followed by the scales of its
// blocks, so that encoded rows can be permuted and sent like other rows. Scales are powers of two and are stored as
// E8M0 bytes (float_codes.h); a block with an infinity or NaN has the scale NaN.
#pragma once
#include "base/integer_math.h"
#include "tensor/ops/low_precision/fp8.h"

namespace mcpp {

/// Encoding of bf16 rows. Each block of consecutive elements of a row has a scale; the last block may be smaller.
struct RowEncoding {
  i64 block = 0;  ///< elements per block; 0: rows are not encoded
  Fp8Format format = Fp8Format::E4M3;

  bool is_defined() const { return block > 0; }
  /// Return the number of int32 words of the codes of a row of `columns` elements, and of the full row. Unused bytes of
  /// the last word of codes and of scales are 0.
  constexpr i64 code_words(i64 columns) const { return ceil_div(columns, 4); }
  constexpr i64 words(i64 columns) const { return code_words(columns) + ceil_div(ceil_div(columns, block), 4); }
};

namespace ops {

/// Rounds the rows of x, a bf16 matrix [N, h], to fp8 and encodes them in `codes`, int32 [N, encoding.words(h)].
void encode_rows(const Tensor& x, const RowEncoding& encoding, Tensor& codes);
/// Decodes rows into x, a bf16 matrix: the values that round_to_fp8() returns for blocks of one row. A row of zero
/// words is decoded to zeros.
void decode_rows(const Tensor& codes, const RowEncoding& encoding, Tensor& x);

}  // namespace ops

/// Backend implementations, as in Kernels.
template <DeviceType D>
struct RowCodeKernels {
  static decltype(ops::encode_rows) encode_rows;
  static decltype(ops::decode_rows) decode_rows;
};

}  // namespace mcpp
