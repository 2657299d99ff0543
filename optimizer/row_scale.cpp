#include "optimizer/row_scale.h"

#include <algorithm>

#include "parallel/dp/buckets/buffer.h"
#include "tensor/ops/ops.h"

namespace mcpp {

void scale_rows(UpdatePart& part, const RowScales& scales) {
  const BufferPlan& plan = part.buffer->plan();
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    const auto found = scales.find(part.buffer->params()[i]);
    if (found == scales.end()) continue;
    const ParamPart inside = part_inside(plan, i, part.begin, part.begin + part.weights.numel());
    for (const RowScale& rows : found->second) {
      const i64 first = std::max(rows.first, inside.first),
                count = std::min(rows.first + rows.count, inside.first + inside.count) - first;
      if (count <= 0) continue;
      const i64 at = plan.offsets[i] + first - part.begin;
      Tensor weights = part.weights.flat(at, count);
      ops::scale(weights, rows.factor);
      if (!part.model.defined()) continue;
      Tensor model = part.model.flat(at, count);
      ops::copy(weights, model);
    }
  }
}

}  // namespace mcpp
