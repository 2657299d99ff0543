// Numbers in less for the way between ranks, as messages of one of two types:
//   int32  a byte each: in every block of 64 the integers from -127 to 127 nearest to them, in steps of a 127th of the
//          block's largest magnitude (ZeRO++, Wang et al. 2023, section 3.1)
//   bf16   each rounded to it
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

/// Elements of the message of `count` numbers in this type, int32 or bf16.
constexpr i64 message_elements(DType type, i64 count) {
  return type == DType::I32 ? packed_words(count) : count;
}

namespace ops {

/// x, of a floating-point type (fp64 is rounded to fp32 first), as the type of the message says. What is not finite
/// does not come back finite, so that what looks for it finds it.
///
/// Of bytes a number comes back at most 1/254 of its block's largest magnitude away, and then rounded to its type, of a
/// block with a number that is not finite nothing but NaN, and blocks below kLeastScale (quantize.h) as zeros.
void pack(const Tensor& x, Tensor& message);
/// What pack() made of as many numbers, in the type of x.
void unpack(const Tensor& message, Tensor& x);
/// `sum`, fp32 or fp64, becomes the sum of what some messages of as many numbers say, which lie one after another, in
/// their order.
void sum_unpacked(const Tensor& messages, Tensor& sum);

}  // namespace ops

/// As Kernels; of fp32, bf16 and fp16, and messages of bytes.
template <DeviceType D>
struct PackKernels {
  static void pack(const Tensor& x, Tensor& message);
  static void unpack(const Tensor& message, Tensor& x);
  static void sum_unpacked(const Tensor& messages, Tensor& sum);  ///< fp32
  static void sum_rounded(const Tensor& messages, Tensor& sum);   ///< fp32, of messages of bf16
};

}  // namespace mcpp
