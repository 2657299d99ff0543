// What a step is predicted from.
#pragma once
#include "plan/cost/implementation.h"
#include "plan/cost/layout.h"

namespace mcpp {

struct Job {
  const Hardware& hardware;
  const Implementation& program;
  const Workload& work;
  Layout layout;
};

}  // namespace mcpp
