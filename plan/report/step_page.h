// A predicted step as a page for a browser.
#pragma once
#include <string>

#include "plan/step/step_time.h"

namespace mcpp {

/// One HTML file with nothing outside of it and no scripts: where the time of each rank of the pipeline goes; the
/// passes of the first microbatches, each with what it computes and the communication that nothing hides; and the
/// memory of each rank meanwhile. What a mark stands for is its tooltip.
std::string step_page(const Job& job, const StepTime& time);

}  // namespace mcpp
