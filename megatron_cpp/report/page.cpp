#include "megatron_cpp/report/page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/html.h"
#include "base/strings.h"
#include "megatron_cpp/report/run_history.h"
#include "megatron_cpp/setup/version.h"

namespace mcpp {
namespace {

using Json = nlohmann::ordered_json;

/// Formats with seven digits, beyond what a screen shows, or all digits of an integer; null if not finite.
std::string number_text(double value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 32> text{};
  const bool is_whole = value == std::floor(value) && std::abs(value) < 1e15;
  std::snprintf(text.data(), text.size(), is_whole ? "%.0f" : "%.7g", value);
  return text.data();
}

void append_list(std::span<const double> values, std::string& text) {
  text += '[';
  for (std::size_t i = 0; i < values.size(); ++i) text.append(i == 0 ? "" : ",").append(number_text(values[i]));
  text += ']';
}

std::string list_text(std::span<const double> values) {
  std::string text;
  append_list(values, text);
  return text;
}

/// Serializes a value without '<'. Invalid UTF-8 is replaced.
std::string json_text(const Json& value) {
  std::string text;
  for (const char c : value.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    if (c == '<')
      text += "\\u003c";
    else
      text += c;
  }
  return text;
}

bool is_constant(std::span<const double> values) {
  return !values.empty() && std::ranges::all_of(values, [&](double v) { return v == values[0]; });
}

/// Serializes a table: {"iteration": [...], "lm_loss": [...], ...}
std::string table_text(const NumberTable& table) {
  std::string text = "{\"iteration\":";
  append_list(table.iterations(), text);
  for (const auto& [name, values] : table.columns()) {
    text.append(",").append(json_text(name)).append(":");
    if (is_constant(values))
      text += number_text(values[0]);
    else
      append_list(values, text);
  }
  return text + "}";
}

/// Serializes a map: {"name": value, ...}
template <class Map, class Text>
std::string object_text(const Map& map, Text text_of) {
  std::string text;
  for (const auto& [name, value] : map)
    text.append(text.empty() ? "{" : ",").append(json_text(name)).append(":").append(text_of(value));
  return text.empty() ? "{}" : text + "}";
}

std::string ranks_text(const std::vector<RunHistory::Ranks>& ranks) {
  constexpr std::size_t kMaxRecords = 200;
  std::string text = "[";
  for (const std::size_t i : evenly_spaced_indices(ranks.size(), kMaxRecords)) {
    text.append(text.size() > 1 ? "," : "").append("{\"iteration\":").append(number_text(ranks[i].iteration));
    text.append(",\"numbers\":").append(object_text(ranks[i].values, list_text));
    text += "}";
  }
  return text + "]";
}

Json starts_of(const ReportRun& run) {
  Json starts = Json::array();
  for (const RunHistory::Start& start : run.history.starts) {
    starts.push_back({{"iteration", start.iteration},
                      {"time", start.time},
                      {"world_size", start.world_size},
                      {"train_iters", start.train_iters},
                      {"host", start.host},
                      {"program", start.program},
                      {"device", start.device},
                      {"config", config_keys(start.config)}});
  }
  if (starts.empty() && !run.config.empty())
    starts.push_back({{"iteration", 0}, {"time", nullptr}, {"config", config_keys(run.config)}});
  return starts;
}

Json events_of(const RunHistory& history) {
  Json events = Json::array();
  for (const RunHistory::Event& event : history.events)
    events.push_back(
        {{"iteration", event.iteration}, {"time", event.time}, {"kind", event.kind}, {"text", event.text}});
  return events;
}

Json samples_of(const RunHistory& history) {
  Json samples = Json::array();
  for (const RunHistory::Sample& sample : history.samples)
    samples.push_back({{"iteration", sample.iteration}, {"prompt", sample.prompt}, {"text", sample.text}});
  return samples;
}

Json experts_of(const RunHistory& history) {
  Json layers = Json::array();
  for (const RunHistory::ExpertLayer& layer : history.experts)
    layers.push_back({{"layer", layer.layer}, {"tokens", layer.tokens}});
  return layers;
}

Json layout_from_config(const std::string& config, double world_size) {
  constexpr double kMaxWorldSize = 1e9;
  const RunLayout layout =
      make_run_layout(config, world_size >= 1 && world_size < kMaxWorldSize ? static_cast<i64>(world_size) : 0);
  Json drawings = Json::array();
  for (const PipelineDrawing& drawing : layout.pipeline)
    drawings.push_back({{"svg", drawing.svg}, {"caption", drawing.caption}});
  return {{"rank_names", layout.rank_names}, {"pipeline", drawings}, {"problem", layout.problem}};
}

std::string run_text(const ReportRun& run) {
  const RunHistory& history = run.history;
  const std::string config = history.starts.empty() ? run.config : history.starts.back().config;
  const double world_size = history.starts.empty() ? 0 : history.starts.back().world_size;
  const std::string seq_length = config_value(config, "model.seq_length");
  std::string text = "{\"name\":" + json_text(run.name) + ",\"file\":" + json_text(run.file.string());
  text += str(",\"unreadable_lines\":", history.unreadable_lines);
  text += ",\"seq_length\":" + number_text(std::strtod(seq_length.c_str(), nullptr));
  text += ",\"steps\":" + table_text(history.steps);
  text += ",\"evaluations\":" + object_text(history.evaluations, table_text);
  text += ",\"starts\":" + json_text(starts_of(run));
  text += ",\"events\":" + json_text(events_of(history));
  text += ",\"samples\":" + json_text(samples_of(history));
  text += ",\"experts\":" + json_text(experts_of(history));
  text += ",\"ranks\":" + ranks_text(history.ranks);
  text += ",\"peak_by_class\":" + object_text(history.peak_by_class, list_text);
  text += ",\"layout\":" + json_text(layout_from_config(config, world_size));
  return text + "}";
}

}  // namespace

std::vector<std::size_t> evenly_spaced_indices(std::size_t size, std::size_t max_count) {
  std::vector<std::size_t> chosen;
  const std::size_t count = std::min(size, max_count);
  for (std::size_t i = 0; i < count; ++i) chosen.push_back(count == 1 ? size - 1 : i * (size - 1) / (count - 1));
  return chosen;
}

std::string page_data(const std::string& title, const std::vector<ReportRun>& runs) {
  std::string text = "{\"title\":" + json_text(title);
  text += ",\"program\":" + json_text(split(version_text(), '\n').front());
  text += ",\"runs\":[";
  for (std::size_t i = 0; i < runs.size(); ++i) text.append(i == 0 ? "" : ",\n").append(run_text(runs[i]));
  return text + "]}";
}

namespace {

std::string concatenate_files(std::string_view extension) {
  std::string text;
  for (const EmbeddedFile& file : report_page_files())
    if (file.name.ends_with(extension)) text += file.content;
  return text;
}

/// Returns `page` with every {{name}} replaced by its part. Inserted text is not expanded, since it is untrusted.
std::string fill_template(std::string_view page, const std::map<std::string, std::string, std::less<>>& parts) {
  std::string text;
  for (std::size_t at = 0; at < page.size();) {
    const std::size_t begin = std::min(page.find("{{", at), page.size()), end = page.find("}}", begin);
    text += page.substr(at, begin - at);
    if (begin == page.size()) break;
    const auto part = parts.find(page.substr(begin + 2, end - begin - 2));
    MCPP_CHECK(part != parts.end(), "page.html has an unknown placeholder");
    text += part->second;
    at = end + 2;
  }
  return text;
}

}  // namespace

std::string report_page(const std::string& title, const std::vector<ReportRun>& runs) {
  return fill_template(concatenate_files(".html"), {{"title", escape_html(title)},
                                                    {"style", concatenate_files(".css")},
                                                    {"script", concatenate_files(".js")},
                                                    {"data", page_data(title, runs)}});
}

}  // namespace mcpp
