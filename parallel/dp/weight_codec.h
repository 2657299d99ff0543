// Encoding of weights for sending and for secondary copies: unchanged, or int8.
#pragma once
#include "tensor/tensor.h"

namespace mcpp {

class WeightCodec {
 public:
  /// `dtype` is the type of the weights. `is_packed` selects int8 with block scales (tensor/ops/low_precision/pack.h).
  WeightCodec(DType dtype, bool is_packed) : dtype_(dtype), is_packed_(is_packed) {}

  bool is_packed() const { return is_packed_; }
  /// Returns the dtype of messages. A slice of a message is the message of a slice.
  DType dtype() const { return is_packed_ ? DType::I32 : dtype_; }
  /// Returns the elements of the message of `weights` weights.
  i64 numel(i64 weights) const;
  /// Allocates a message of `weights` weights.
  Tensor message(i64 weights, Device& device) const;
  /// Returns the message of these weights; unencoded, that is `weights` itself.
  Tensor encode(const Tensor& weights) const;
  /// Returns the decoded weights; unencoded, that is `message` itself.
  Tensor read(const Tensor& message, i64 weights) const;
  /// Decodes into `weights`, which may be the message itself if it is unencoded.
  void decode_into(const Tensor& message, Tensor& weights) const;

 private:
  DType dtype_;
  bool is_packed_;
};

}  // namespace mcpp
