// Input of the step time prediction.
#pragma once
#include "plan/cost/layout.h"
#include "plan/hardware/kernel_traits.h"

namespace mcpp {

struct PredictionInput {
  const Hardware& hardware;
  const KernelTraits& program;
  const Workload& work;
  Layout layout;
};

}  // namespace mcpp
