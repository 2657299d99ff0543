// What a step's time goes into, by name.
#pragma once
#include <vector>

#include "plan/step/step_time.h"

namespace mcpp {

struct StepPart {
  const char* key;     ///< in JSON
  const char* name;    ///< in tables
  const char* colour;  ///< of CSS, in pictures
  double seconds;
};

/// All, in one order, those that take no time too. They add up to the step.
std::vector<StepPart> step_parts(const StepTime& time);
/// The same of one pass of a microbatch.
std::vector<StepPart> pass_parts(const PassTime& time);

}  // namespace mcpp
