// How weights travel between ranks, and lie in a second copy of them: as they are, or in a byte each.
#pragma once
#include "tensor/tensor.h"

namespace mcpp {

class Wire {
 public:
  /// `dtype`: of the weights. `is_packed`: in a byte each (tensor/ops/narrow/pack.h).
  Wire(DType dtype, bool is_packed) : dtype_(dtype), is_packed_(is_packed) {}

  bool is_packed() const { return is_packed_; }
  /// Of messages, whose parts are the messages of parts.
  DType dtype() const { return is_packed_ ? DType::I32 : dtype_; }
  /// Elements of the message of so many weights.
  i64 numel(i64 weights) const;
  /// Room for it.
  Tensor message(i64 weights, Device& device) const;
  /// The message of these weights; where they travel as they are, they themselves.
  Tensor written(const Tensor& weights) const;
  /// Its weights; where they travel as they are, the message itself.
  Tensor read(const Tensor& message, i64 weights) const;
  /// The same into `weights`, which may be the message itself where they travel as they are.
  void read_into(const Tensor& message, Tensor& weights) const;

 private:
  DType dtype_;
  bool is_packed_;
};

}  // namespace mcpp
