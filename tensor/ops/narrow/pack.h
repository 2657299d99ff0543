// Numbers as a byte each for the way between ranks: in every block of 64 the integers from -127 to 127 nearest to them,
// in steps of a 127th of the block's largest magnitude (ZeRO++, Wang et al. 2023, section 3.1).
//
// A block and its scale lie together, so a part of a message is the message of a part. All cuts of parameters over
// data-parallel ranks lie between blocks: what arrives does not depend on how many ranks sent it.
#pragma once
#include "tensor/tensor.h"

namespace mcpp {

inline constexpr i64 kPackedBlock = 64;
/// Of a block in a message: its scale, and its bytes in fours.
inline constexpr i64 kPackedWords = 1 + kPackedBlock / 4;

/// Words (int32) of the message of `count` numbers, a multiple of kPackedBlock.
constexpr i64 packed_words(i64 count) {
  return count / kPackedBlock * kPackedWords;
}

namespace ops {

/// x, of a floating-point type (fp64 is rounded to fp32 first), as bytes. A number comes back at most 1/254 of its
/// block's largest magnitude away, and then rounded to its type. Of a block with a number that is not finite nothing
/// comes back but NaN, so that what looks for those finds it; blocks below kLeastScale (quantize.h) come back as zeros.
void pack(const Tensor& x, Tensor& message);
/// What pack() made of as many numbers, in the type of x.
void unpack(const Tensor& message, Tensor& x);
/// `sum`, fp32 or fp64, becomes the sum of what some messages of as many numbers say, which lie one after another, in
/// their order.
void sum_unpacked(const Tensor& messages, Tensor& sum);

}  // namespace ops

/// As Kernels; of fp32, bf16 and fp16.
template <DeviceType D>
struct PackKernels {
  static void pack(const Tensor& x, Tensor& message);
  static void unpack(const Tensor& message, Tensor& x);
  static void sum_unpacked(const Tensor& messages, Tensor& sum);  ///< fp32
};

}  // namespace mcpp
