#include "plan/cost/workload.h"

namespace mcpp {

ActivationSetup PredictionInput::trace_setup() const {
  ActivationSetup setup = activations();
  if (work.gemms == GemmType::Fp8) setup.fp8 = {.first = 0, .end = work.model.num_layers};
  if (layout.ep > 1) setup.expert_imbalance = work.expert_imbalance;
  return setup;
}

}  // namespace mcpp
