// Pictures of a simulated schedule.
#pragma once
#include <string>

#include "parallel/pp/simulate.h"

namespace mcpp {

/// One line per rank, at most `width` columns of time. Forward shows the last digit of its microbatch, backward (or the
/// input gradient) a letter a-j for 0-9, the weight gradient that was put off the capital letter; idle time is a dot.
/// Ends with a legend and a line of figures.
std::string draw_text(const Schedule& schedule, const Timeline& timeline, int width = 100);

/// The same as an SVG image: a box per action with its microbatch, later chunks of a rank in darker colours.
std::string draw_svg(const Schedule& schedule, const Timeline& timeline);

}  // namespace mcpp
