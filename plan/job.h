// What a step is predicted from.
#pragma once
#include "plan/implementation.h"
#include "plan/layout.h"

namespace mcpp {

struct Job {
  const Hardware& hardware;
  const Implementation& program;
  const Workload& work;
  Layout layout;
};

}  // namespace mcpp
