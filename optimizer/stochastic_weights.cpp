#include "optimizer/stochastic_weights.h"

#include "base/philox.h"
#include "parallel/dp/buckets/buffer.h"
#include "tensor/ops/low_precision/stochastic_round.h"

namespace mcpp {

void round_weights(UpdatePart& part, u64 seed, i64 step) {
  const BufferPlan& plan = part.buffer->plan();
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    const ParamPart inside = part_inside(plan, i, part.begin, part.begin + part.weights.numel());
    if (inside.count <= 0) continue;
    const Param& param = *part.buffer->params()[i];
    const i64 at = plan.offsets[i] + inside.first - part.begin;
    Tensor model = part.model.flat(at, inside.count);
    ops::stochastic_round(part.weights.flat(at, inside.count),
                          {.key = philox_key(seed, param.name, static_cast<u64>(step)),
                           .global = param.box.global,
                           .offset = param.box.offset,
                           .shape = param.box.shape,
                           .first = inside.first},
                          model);
  }
}

}  // namespace mcpp
