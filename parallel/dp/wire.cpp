#include "parallel/dp/wire.h"

#include "tensor/ops/narrow/pack.h"
#include "tensor/ops/ops.h"

namespace mcpp {

i64 Wire::numel(i64 weights) const {
  return is_packed_ ? packed_words(weights) : weights;
}

Tensor Wire::message(i64 weights, Device& device) const {
  return Tensor::empty({numel(weights)}, dtype(), device, MemoryClass::Params);
}

Tensor Wire::written(const Tensor& weights) const {
  if (!is_packed_) return weights;
  Tensor to = message(weights.numel(), weights.device());
  ops::pack(weights, to);
  return to;
}

Tensor Wire::read(const Tensor& message, i64 weights) const {
  if (!is_packed_) return message;
  Tensor to = Tensor::empty({weights}, dtype_, message.device(), MemoryClass::Params);
  ops::unpack(message, to);
  return to;
}

void Wire::read_into(const Tensor& message, Tensor& weights) const {
  if (is_packed_) return ops::unpack(message, weights);
  if (message.raw() != weights.raw()) ops::copy(message, weights);
}

}  // namespace mcpp
