// Compressed encodings of values sent between ranks:
//   int32  one byte per value: in blocks of 64, the nearest integers from -127 to 127 in steps of 1/127 of the block's
//          largest magnitude (ZeRO++, Wang et al. 2023, section 3.1)
//   bf16   each value rounded to bf16
//
// A block is stored with its scale, so a slice of an encoded buffer is the encoding of the slice. Parameters are
// sharded across data-parallel ranks at block boundaries, so the received values do not depend on the number of sending
// ranks.
#pragma once
#include "tensor/tensor.h"

namespace mcpp {

inline constexpr i64 kPackedBlock = 64;
/// Number of int32 words of an encoded block: its scale, and its bytes in groups of four.
inline constexpr i64 kPackedWords = 1 + kPackedBlock / 4;

/// Returns the number of int32 words that encode `count` values, a multiple of kPackedBlock.
constexpr i64 packed_words(i64 count) {
  return count / kPackedBlock * kPackedWords;
}

/// Returns the number of elements of `type`, int32 or bf16, that encode `count` values.
constexpr i64 message_elements(DType type, i64 count) {
  return type == DType::I32 ? packed_words(count) : count;
}

namespace ops {

/// Encodes x, of a floating-point dtype (fp64 is first rounded to fp32), in the dtype of the message. Non-finite values
/// decode to non-finite ones, so that they are detected.
///
/// For bytes, the error is at most 1/254 of the block's largest magnitude, plus rounding to the dtype. A block with a
/// non-finite value decodes to NaN; a block below kMinScale (quantize.h) decodes to zeros.
void pack(const Tensor& x, Tensor& message);
/// Decodes a message of pack() with the same number of values into the dtype of x.
void unpack(const Tensor& message, Tensor& x);
/// Decodes consecutive messages of equal size and stores their sum, added in order, in `sum`, fp32 or fp64.
void sum_unpacked(const Tensor& messages, Tensor& sum);

}  // namespace ops

/// Backend implementations, as in Kernels, for fp32, bf16 and fp16, and byte messages.
template <DeviceType D>
struct PackKernels {
  static void pack(const Tensor& x, Tensor& message);
  static void unpack(const Tensor& message, Tensor& x);
  static void sum_unpacked(const Tensor& messages, Tensor& sum);  ///< fp32 sum of byte messages
  static void sum_rounded(const Tensor& messages, Tensor& sum);   ///< fp32 sum of bf16 messages
};

}  // namespace mcpp
