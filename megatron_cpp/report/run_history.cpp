#include "megatron_cpp/report/run_history.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/strings.h"
#include "base/utc_time.h"
#include "megatron_cpp/config/layout.h"
#include "parallel/pp/draw.h"
#include "parallel/pp/schedule.h"
#include "parallel/topology.h"

namespace mcpp {

constexpr double kEmptyCell = std::numeric_limits<double>::quiet_NaN();

void NumberTable::add(double iteration, std::span<const std::pair<std::string, double>> row) {
  while (!iterations_.empty() && iterations_.back() >= iteration) iterations_.pop_back();
  iterations_.push_back(iteration);
  for (Column& column : columns_) {
    column.values.resize(rows() - 1, kEmptyCell);
    column.values.push_back(kEmptyCell);
  }
  for (const auto& [name, value] : row) {
    if (Column* column = find_or_add(name)) column->values.back() = value;
  }
}

void NumberTable::truncate_after(double iteration) {
  while (!iterations_.empty() && iterations_.back() > iteration) iterations_.pop_back();
  for (Column& column : columns_) column.values.resize(rows(), kEmptyCell);
}

std::span<const double> NumberTable::column(std::string_view name) const {
  const auto it = std::ranges::find(columns_, name, &Column::name);
  if (it == columns_.end()) return {};
  return it->values;
}

NumberTable::Column* NumberTable::find_or_add(const std::string& name) {
  const auto it = std::ranges::find(columns_, name, &Column::name);
  if (it != columns_.end()) return &*it;
  if (columns_.size() == kMaxColumns) return nullptr;
  return &columns_.emplace_back(Column{name, std::vector<double>(rows(), kEmptyCell)});
}

namespace {

using Json = nlohmann::ordered_json;
using Numbers = std::vector<double>;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double number_in(const Json& record, const char* key) {
  const auto it = record.find(key);
  return it != record.end() && it->is_number() ? it->get<double>() : kNone;
}

std::string text_in(const Json& record, const char* key) {
  const auto it = record.find(key);
  return it != record.end() && it->is_string() ? it->get<std::string>() : std::string();
}

/// Returns the elements of a list, with NaN for non-numbers; empty if it is not a list.
Numbers numeric_list(const Json& list) {
  Numbers values;
  if (!list.is_array()) return values;
  for (const Json& element : list) values.push_back(element.is_number() ? element.get<double>() : kNone);
  return values;
}

std::vector<std::pair<std::string, double>> row_of(const Json& record) {
  std::vector<std::pair<std::string, double>> row;
  for (const auto& [key, value] : record.items()) {
    if (value.is_number()) row.emplace_back(key, value.get<double>());
    if (value.is_null()) row.emplace_back(key, kNone);
    if (key == "time" && value.is_string()) row.emplace_back(key, parse_utc(value.get<std::string>()).value_or(kNone));
  }
  std::erase_if(row, [](const auto& cell) { return cell.first == "iteration"; });
  return row;
}

template <class Record>
void drop_after(double iteration, std::vector<Record>& records) {
  std::erase_if(records, [&](const Record& record) { return record.iteration > iteration; });
}

}  // namespace

void RunHistory::add_line(std::string_view line) {
  const Json record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  const double iteration = record.is_object() ? number_in(record, "iteration") : kNone;
  if (!(iteration >= 0) || !std::isfinite(iteration)) {
    unreadable_lines += 1;
    return;
  }
  const std::string type = text_in(record, "type");
  const double time = parse_utc(text_in(record, "time")).value_or(kNone);
  if (type == "train") {
    add_step(iteration, record);
  } else if (type == "run") {
    rewind(iteration);
    starts.push_back({.iteration = iteration,
                      .time = time,
                      .world_size = number_in(record, "world_size"),
                      .train_iters = number_in(record, "train_iters"),
                      .host = text_in(record, "host"),
                      .program = text_in(record, "program"),
                      .device = text_in(record, "device"),
                      .config = text_in(record, "config")});
  } else if (type == "event") {
    events.push_back(
        {.iteration = iteration, .time = time, .kind = text_in(record, "event"), .text = text_in(record, "text")});
  } else if (type == "sample") {
    samples.push_back({.iteration = iteration, .prompt = text_in(record, "prompt"), .text = text_in(record, "text")});
  } else if (type == "ranks") {
    add_ranks(iteration, record);
  } else if (record.contains("lm_loss") || type.starts_with("task-")) {
    add_evaluation(iteration, type, record);
  }
}

void RunHistory::add_step(double iteration, const Json& record) {
  if (steps.rows() > 0 && iteration <= steps.iterations().back()) rewind(iteration - 1);
  auto row = row_of(record);
  if (const auto ranks_record = record.find("ranks"); ranks_record != record.end() && ranks_record->is_object())
    add_ranks(iteration, *ranks_record);
  if (const auto timers = record.find("timers_ms"); timers != record.end() && timers->is_object()) {
    for (const auto& [name, min_and_max] : timers->items())  // minimum and maximum over ranks
      if (const Numbers of_ranks = numeric_list(min_and_max); !of_ranks.empty())
        row.emplace_back("timer_" + name, of_ranks.back());
  }
  const auto layers = record.find("experts");
  if (layers == record.end() || !layers->is_array()) return steps.add(iteration, row);
  experts.clear();
  double largest = kNone, dropped = 0, balance = 0;
  for (const Json& layer : *layers) {
    if (!layer.is_object()) continue;
    experts.push_back(
        {.layer = number_in(layer, "layer"), .tokens = numeric_list(layer.value("tokens_per_expert", Json::array()))});
    largest = std::fmax(largest, number_in(layer, "largest_load"));
    dropped += number_in(layer, "dropped");
    balance += number_in(layer, "load_balancing_loss");
  }
  const auto count = static_cast<double>(experts.size());
  row.emplace_back("largest_expert_load", largest);
  row.emplace_back("dropped_tokens", dropped / count);
  row.emplace_back("load_balancing_loss", balance / count);
  steps.add(iteration, row);
}

void RunHistory::add_evaluation(double iteration, const std::string& split, const Json& record) {
  // Real runs have fewer; damaged files may have more.
  constexpr std::size_t kMaxSplits = 1000;
  if (evaluations.contains(split) || evaluations.size() < kMaxSplits) evaluations[split].add(iteration, row_of(record));
}

void RunHistory::add_ranks(double iteration, const Json& record) {
  // Files of earlier versions may have the ranks both in a step and in a separate record.
  if (ranks.empty() || ranks.back().iteration != iteration) ranks.push_back({.iteration = iteration, .values = {}});
  Ranks& added = ranks.back();
  for (const auto& [key, value] : record.items())
    if (value.is_array()) added.values[key] = numeric_list(value);
  const auto classes = record.find("peak_by_class");
  if (classes == record.end() || !classes->is_object()) return;
  for (const auto& [key, value] : classes->items()) peak_by_class[key] = numeric_list(value);
}

void RunHistory::rewind(double iteration) {
  steps.truncate_after(iteration);
  for (auto& [split, table] : evaluations) table.truncate_after(iteration);
  drop_after(iteration, starts);
  drop_after(iteration, events);
  drop_after(iteration, samples);
  drop_after(iteration, ranks);
}

RunHistory read_run_history(const Path& file) {
  RunHistory history;
  const std::string text = read_text_file(file);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) history.add_line(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
  }
  return history;
}

namespace {

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
