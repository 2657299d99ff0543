// Rendering of simulated schedules as text and SVG.
#pragma once
#include <string>

#include "parallel/pp/simulate.h"

namespace mcpp {

/// Renders one line per rank with at most `width` columns of time. A forward pass shows the last digit of its
/// microbatch; a backward pass (or input gradient) shows that digit as a letter a-j; a delayed weight gradient shows
/// the capital letter; idle time is a dot. Ends with a legend and a line of statistics.
std::string draw_text(const Schedule& schedule, const Timeline& timeline, int width = 100);

/// Returns an SVG image with one box per action, labeled with its microbatch. Later chunks of a rank are darker.
std::string draw_svg(const Schedule& schedule, const Timeline& timeline);

}  // namespace mcpp
