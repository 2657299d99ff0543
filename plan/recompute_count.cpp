#include "plan/recompute_count.h"

#include <algorithm>

#include "parallel/pp/stages.h"

namespace mcpp {

std::optional<Layout> minimize_recompute(LayoutMemory& memory, Layout layout, const ModelConfig& model,
                                         double device_bytes) {
  if (layout.recompute.granularity != Recompute::Granularity::Full) return std::nullopt;
  if (layout.uses(OffloadTier::Host) || layout.uses(OffloadTier::File)) return std::nullopt;
  const auto fits = [&](i64 layers) {
    layout.recompute.method = Recompute::Method::Block;
    layout.recompute.num_layers = layers;
    return memory.peak(layout).total() <= device_bytes;
  };
  i64 peak = 0;
  for (const StageContents& stage : split_stages(layout.stage_split(model))) peak = std::max(peak, stage.num_layers());
  i64 too_few = 0, enough = peak;
  if (fits(too_few)) return std::nullopt;
  while (enough - too_few > 1) {
    const i64 middle = (too_few + enough) / 2;
    (fits(middle) ? enough : too_few) = middle;
  }
  if (enough == peak) return std::nullopt;
  layout.recompute.num_layers = enough;
  return layout;
}

}  // namespace mcpp
