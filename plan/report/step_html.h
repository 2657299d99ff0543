// Visualization of a predicted step as an HTML page.
#pragma once
#include <string>

#include "plan/step/step_time.h"

namespace mcpp {

/// Returns a self-contained HTML file without scripts. It shows the breakdown of each pipeline rank's time; the passes
/// of the first microbatches with their compute and exposed communication; and the memory of each rank over time.
/// Tooltips explain the marks.
std::string step_html(const PredictionInput& input, const StepTime& time);

}  // namespace mcpp
