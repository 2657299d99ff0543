#include "parallel/dp/weight_codec.h"

#include "tensor/ops/low_precision/pack.h"
#include "tensor/ops/ops.h"

namespace mcpp {

i64 WeightCodec::numel(i64 weights) const {
  return is_packed_ ? packed_words(weights) : weights;
}

Tensor WeightCodec::message(i64 weights, Device& device) const {
  return Tensor::empty({numel(weights)}, dtype(), device, MemoryClass::Params);
}

Tensor WeightCodec::encode(const Tensor& weights) const {
  if (!is_packed_) return weights;
  Tensor to = message(weights.numel(), weights.device());
  ops::pack(weights, to);
  return to;
}

Tensor WeightCodec::read(const Tensor& message, i64 weights) const {
  if (!is_packed_) return message;
  Tensor to = Tensor::empty({weights}, dtype_, message.device(), MemoryClass::Params);
  ops::unpack(message, to);
  return to;
}

void WeightCodec::decode_into(const Tensor& message, Tensor& weights) const {
  if (is_packed_) return ops::unpack(message, weights);
  if (message.raw() != weights.raw()) ops::copy(message, weights);
}

}  // namespace mcpp
