// Input of the step time prediction.
#pragma once
#include "plan/cost/layout.h"
#include "plan/hardware/implementation.h"

namespace mcpp {

struct Job {
  const Hardware& hardware;
  const Implementation& program;
  const Workload& work;
  Layout layout;
};

}  // namespace mcpp
