#include "plan/cost/workload.h"

#include <algorithm>

namespace mcpp {

std::vector<GemmRecipe> Workload::recipes() const {
  using enum GemmRecipe;
  std::vector<GemmRecipe> used;
  for (const GemmRecipe recipe : {Tensorwise, Blockwise, Mxfp8, Nvfp4}) {
    const auto uses = [&](const ModuleRecipe& rule) { return rule.recipe.uses(recipe); };
    if ((fp8.first < fp8.end && fp8.recipe.uses(recipe)) || std::ranges::any_of(fp8.modules, uses))
      used.push_back(recipe);
  }
  return used;
}

ActivationSetup PredictionInput::trace_setup() const {
  ActivationSetup setup = activations();
  setup.fp8 = work.fp8;
  if (layout.ep > 1) setup.expert_imbalance = work.expert_imbalance;
  return setup;
}

}  // namespace mcpp
