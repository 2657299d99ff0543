// Named parts of a step's time.
#pragma once
#include <vector>

#include "plan/step/step_time.h"

namespace mcpp {

struct StepPart {
  const char* key;    ///< in JSON
  const char* name;   ///< in tables
  const char* color;  ///< CSS color, in pictures
  double seconds;
};

/// Returns all parts in a fixed order, including those of zero seconds. They add up to the step.
std::vector<StepPart> step_parts(const StepTime& time);
/// Returns the parts of one pass of a microbatch.
std::vector<StepPart> pass_parts(const PassTime& time);

}  // namespace mcpp
