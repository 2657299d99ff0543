#include "model/config/expert_layers.h"

namespace mcpp {

std::vector<i64> layers_with_experts(const MoeConfig& moe, i64 first, i64 end) {
  std::vector<i64> layers;
  for (i64 layer = first; layer < end; ++layer)
    if (moe.has_experts(layer)) layers.push_back(layer);
  return layers;
}

}  // namespace mcpp
