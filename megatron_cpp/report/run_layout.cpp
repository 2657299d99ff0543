#include "megatron_cpp/report/run_layout.h"

#include <algorithm>

#include "base/check.h"
#include "base/strings.h"
#include "megatron_cpp/config/layout.h"
#include "parallel/pp/draw.h"
#include "parallel/pp/schedule.h"
#include "parallel/topology.h"

namespace mcpp {
namespace {

std::string trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin));
}

std::string rank_name(int rank, const Topology& topology) {
  const AxisValues sizes = topology.dense().sizes(), at = topology.dense().coordinates(rank);
  std::vector<std::string> coordinates;
  for (const Axis axis : {Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp})
    if (sizes[axis] > 1) coordinates.push_back(str(name_of(axis), " ", at[axis]));
  return coordinates.empty() ? str("rank ", rank) : str("rank ", rank, " (", join(coordinates, ", "), ")");
}

/// Returns the number of microbatches to draw: fewer than all if a page could not show them, since the pattern repeats.
int microbatches_to_draw(const Layout& layout, int all) {
  constexpr i64 kMaxBoxes = 12000;
  const i64 boxes_of_one = 3 * layout.pp * layout.chunks;
  const i64 rounds = std::max<i64>(2, kMaxBoxes / (boxes_of_one * layout.pp));
  const auto fewer = static_cast<int>(std::min<i64>(all, rounds * layout.pp));
  return layout.schedule_conflicts(fewer).empty() ? fewer : all;
}

PipelineDrawing draw_pipeline(const Config& config, int world_size) {
  const Layout& layout = config.parallel;
  const int all = static_cast<int>(microbatches_per_step(config, world_size));
  const int drawn = microbatches_to_draw(layout, all);
  const Schedule schedule = layout.make_schedule(drawn);
  const std::string part = drawn < all ? str(", of which ", drawn, " are drawn") : "";
  return {.svg = draw_svg(schedule, simulate(lower(schedule))),
          .caption = str(enum_name(layout.schedule), ", ", all, " microbatches in a step", part,
                         "; forward, and each half of backward, assumed to take equal time")};
}

RunLayout layout_from_config(const Config& config, int world_size) {
  check_layout(config, world_size);
  RunLayout layout;
  const Topology topology(world_size, config.parallel);
  for (int rank = 0; rank < world_size; ++rank) layout.rank_names.push_back(rank_name(rank, topology));
  if (config.parallel.pp > 1) layout.pipeline.push_back(draw_pipeline(config, world_size));
  return layout;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> config_keys(std::string_view config) {
  std::vector<std::pair<std::string, std::string>> keys;
  std::string section;
  for (const std::string& line : split(config, '\n')) {
    const std::string text = trimmed(line);
    const std::size_t equals = text.find('=');
    if (text.starts_with('[') && text.ends_with(']')) {
      section = text.substr(1, text.size() - 2);
    } else if (!text.starts_with('#') && equals != std::string::npos) {
      keys.emplace_back(str(section, section.empty() ? "" : ".", trimmed(text.substr(0, equals))),
                        trimmed(text.substr(equals + 1)));
    }
  }
  return keys;
}

std::string config_value(std::string_view config, std::string_view key) {
  for (auto& [name, value] : config_keys(config))
    if (name == key) return value;
  return {};
}

RunLayout make_run_layout(const std::string& config, i64 world_size) {
  constexpr i64 kMaxRanks = 1 << 20;
  if (config.empty()) return {.problem = "its configuration is unknown"};
  if (world_size < 1 || world_size > kMaxRanks) return {.problem = "its number of ranks is unknown"};
  try {
    return layout_from_config(parse_stored_config(config, "configuration"), static_cast<int>(world_size));
  } catch (const Error& error) {
    return {.problem = str("its configuration does not fit this version: ", error.what())};
  }
}

}  // namespace mcpp
