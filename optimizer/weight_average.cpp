#include "optimizer/weight_average.h"

#include <algorithm>

#include "tensor/ops/ops.h"

namespace mcpp {

void update_ema(UpdatePart& part, const OptimizerConfig& config, const UpdateStep& step) {
  const i64 updates = step.step - config.ema_start;
  if (updates <= 0) return start_ema(part);
  if (updates % config.ema_interval != 0) return;
  // average -= lr (weights - average) with lr = decay - 1.
  ops::apply_update(part.ema, part.weights, {.lr = config.ema_decay - 1, .weight_decay = -1, .factor = step.factor},
                    nullptr);
}

void start_ema(UpdatePart& part) {
  ops::copy(part.weights, part.ema);
}

void swap_ema(UpdatePart& part) {
  constexpr i64 kChunk = i64{1} << 20;  // bounds the memory of the copy
  const i64 count = part.weights.numel();
  Tensor copies =
      Tensor::empty({std::min(count, kChunk)}, part.weights.dtype(), part.weights.device(), MemoryClass::Workspace);
  for (i64 begin = 0; begin < count; begin += kChunk) {
    const i64 size = std::min(kChunk, count - begin);
    Tensor weights = part.weights.flat(begin, size), ema = part.ema.flat(begin, size), copy = copies.flat(0, size);
    ops::copy(weights, copy);
    ops::copy(ema, weights);
    ops::copy(copy, ema);
  }
  if (part.model.defined()) ops::copy(part.weights, part.model);
}

}  // namespace mcpp
