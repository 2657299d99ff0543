#include "plan/cost/workload.h"

namespace mcpp {

std::vector<GemmRecipe> Workload::recipes() const {
  using enum GemmRecipe;
  std::vector<GemmRecipe> used;
  for (const GemmRecipe recipe : {Tensorwise, Delayed, Blockwise, Mxfp8, Nvfp4})
    if (fp8.uses(recipe)) used.push_back(recipe);
  return used;
}

ActivationSetup Workload::activations(const Layout& layout) const {
  ActivationSetup setup = activation_setup(layout, dtype);
  if (fp8.moe_fp8_dispatch) setup.fp8 = fp8;
  return setup;
}

ActivationSetup PredictionInput::trace_setup() const {
  ActivationSetup setup = activations();
  setup.fp8 = work.fp8;
  if (layout.ep > 1) setup.expert_imbalance = work.expert_imbalance;
  return setup;
}

}  // namespace mcpp
