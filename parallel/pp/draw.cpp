#include "parallel/pp/draw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/strings.h"

namespace mcpp {
namespace {

bool is_work(const TimedAction& timed) {
  return timed.end > timed.begin && timed.action.kind <= ActionKind::BackwardWeight;
}

/// Returns the shortest duration of compute, or the makespan without compute.
double shortest_work(const Timeline& timeline) {
  double shortest = timeline.makespan;
  for (const auto& actions : timeline.per_rank)
    for (const TimedAction& timed : actions)
      if (is_work(timed)) shortest = std::min(shortest, timed.end - timed.begin);
  return shortest;
}

char letter_for(const Action& action) {
  switch (action.kind) {
    case ActionKind::Forward:
      return static_cast<char>('0' + action.microbatch % 10);
    case ActionKind::BackwardWeight:
      return static_cast<char>('A' + action.microbatch % 10);
    default:
      return static_cast<char>('a' + action.microbatch % 10);
  }
}

/// Formats a number with at most `digits` decimals, without trailing zeros.
std::string format_number(double value, int digits = 2) {
  const double unit = std::pow(10.0, digits);
  return str(std::round(value * unit) / unit);
}

std::string format_count(int n, const char* noun, const char* plural = "s") {
  return str(n, " ", noun, n == 1 ? "" : plural);
}

std::string format_statistics(const Schedule& schedule, const Timeline& timeline) {
  return str(format_count(schedule.ranks, "rank"), ", ", format_count(schedule.chunks_per_rank, "chunk"), " per rank, ",
             format_count(schedule.microbatches, "microbatch", "es"), ": time ", format_number(timeline.makespan),
             ", bubble ", format_number(100 * timeline.bubble, 1), " %, at most ",
             format_number(static_cast<double>(timeline.max_in_flight()) / schedule.chunks_per_rank),
             " microbatches in memory");
}

/// Returns the fill color: hue by kind (forward, backward, input gradient, weight gradient), lightness by chunk.
std::string fill_color(const Action& action, const Schedule& schedule) {
  static constexpr std::array kHues{215, 145, 175, 95};
  const int hue = kHues[static_cast<std::size_t>(action.kind)];
  const int chunk = schedule.chunk_of(action.stage), chunks = schedule.chunks_per_rank;
  const int lightness = chunks > 1 ? 82 - 32 * chunk / (chunks - 1) : 75;
  return str("hsl(", hue, ",65%,", lightness, "%)");
}

constexpr double kRowHeight = 24, kLeft = 64, kTop = 32;

std::string svg_box(const TimedAction& timed, const Schedule& schedule, double scale, std::size_t rank) {
  const double x = kLeft + timed.begin * scale, width = (timed.end - timed.begin) * scale;
  const double y = kTop + static_cast<double>(rank) * kRowHeight;
  std::string box =
      str("<g><title>", describe(timed.action), ", ", format_number(timed.begin), " to ", format_number(timed.end),
          "</title><rect x=\"", format_number(x), "\" y=\"", format_number(y), "\" width=\"", format_number(width),
          "\" height=\"", kRowHeight - 2, "\" fill=\"", fill_color(timed.action, schedule), "\"/>");
  if (width >= 8)  // wide enough for a number
    box += str("<text x=\"", format_number(x + width / 2), "\" y=\"", format_number(y + 15), "\">",
               timed.action.microbatch, "</text>");
  return box + "</g>\n";
}

}  // namespace

std::string draw_text(const Schedule& schedule, const Timeline& timeline, int width) {
  const double span = std::max(timeline.makespan, 1e-30);
  // Uses one column for the shortest work if that fits.
  const double needed = std::ceil(span / std::max(shortest_work(timeline), 1e-30) - 1e-9);
  const int columns = std::max(1, static_cast<int>(std::min<double>(width, needed)));
  const double unit = span / columns;
  std::string text;
  for (std::size_t rank = 0; rank < timeline.per_rank.size(); ++rank) {
    std::string line(static_cast<std::size_t>(columns), '.');
    for (const TimedAction& timed : timeline.per_rank[rank]) {
      if (!is_work(timed)) continue;
      // Columns whose center is inside the action.
      const int begin = static_cast<int>(std::ceil(timed.begin / unit - 0.5));
      const int end = std::min(columns, static_cast<int>(std::ceil(timed.end / unit - 0.5)));
      for (int x = begin; x < end; ++x) line[static_cast<std::size_t>(x)] = letter_for(timed.action);
    }
    std::string label = str("rank ", rank);
    label.resize(std::max<std::size_t>(8, label.size() + 1), ' ');
    text += label + "|" + line + "|\n";
  }
  return text + "forward 0-9, backward or input gradient a-j, weight gradient A-J, idle .\n" +
         format_statistics(schedule, timeline) + "\n";
}

std::string draw_svg(const Schedule& schedule, const Timeline& timeline) {
  // Boxes of the shortest action fit two digits, within the maximum image width.
  const double scale = timeline.makespan > 0 ? std::min(18 / shortest_work(timeline), 20000 / timeline.makespan) : 1;
  const double width = kLeft + timeline.makespan * scale + 8;
  const double height = kTop + kRowHeight * static_cast<double>(timeline.per_rank.size()) + 8;
  std::string svg = str("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"", format_number(std::max(width, 640.0)),
                        "\" height=\"", format_number(height),
                        "\" font-family=\"sans-serif\" font-size=\"11\" text-anchor=\"middle\">\n"
                        "<text x=\"8\" y=\"20\" text-anchor=\"start\">",
                        format_statistics(schedule, timeline), "</text>\n");
  for (std::size_t rank = 0; rank < timeline.per_rank.size(); ++rank) {
    svg += str("<text x=\"8\" y=\"", format_number(kTop + static_cast<double>(rank) * kRowHeight + 15),
               "\" text-anchor=\"start\">rank ", rank, "</text>\n");
    for (const TimedAction& timed : timeline.per_rank[rank])
      if (is_work(timed)) svg += svg_box(timed, schedule, scale, rank);
  }
  return svg + "</svg>\n";
}

}  // namespace mcpp
