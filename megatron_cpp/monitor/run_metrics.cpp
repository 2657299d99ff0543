#include "megatron_cpp/monitor/run_metrics.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/check.h"
#include "base/strings.h"

namespace mcpp {
namespace {

/// A number, or 0 where there is none.
double number(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return 0;
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

/// A text, or "" where there is none.
std::string text(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

bool is_step(const nlohmann::json& object) {
  if (!object.is_object() || number(object, "elapsed_ms") <= 0) return false;
  return text(object, "type") == "train";
}

/// Of the classes of memory, the most of any rank.
std::map<std::string, double> peaks_of(const nlohmann::json& table) {
  std::map<std::string, double> peaks;
  const auto found = table.find("peak_by_class");
  if (found == table.end() || !found->is_object()) return peaks;
  for (const auto& [name, ranks] : found->items())
    for (const auto& bytes : ranks)
      if (bytes.is_number()) peaks[name] = std::max(peaks[name], bytes.get<double>());
  return peaks;
}

/// The trace of the latest iterations; empty when there is none.
Path newest_trace(const Path& folder) {
  Path newest;
  for (const Path& place : {folder, folder / "traces"}) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(place, ignored)) {
      const std::string name = entry.path().filename();
      const bool is_trace = name.starts_with("trace_iter_") && name.ends_with(".json");
      if (is_trace && (newest.empty() || newest.filename() < entry.path().filename())) newest = entry.path();
    }
  }
  return newest;
}

/// "output_layer" of "output_layer and loss": its forward pass has another name than its backward pass.
std::string module_name(const std::string& range) {
  return range.substr(0, range.find(' '));
}

bool is_module(const std::string& name) {
  return name == "embedding" || name.starts_with("decoder.layers.") || name.starts_with("output_layer");
}

/// Process and thread.
std::pair<double, double> thread_of(const nlohmann::json& event) {
  return {number(event, "pid"), number(event, "tid")};
}

/// On a GPU the host's ranges tell when it queued them; those that count are on the thread "device".
std::set<std::pair<double, double>> device_threads(const nlohmann::json& events) {
  std::set<std::pair<double, double>> threads;
  for (const auto& event : events)
    if (text(event, "name") == "thread_name" && event.contains("args") && text(event["args"], "name") == "device")
      threads.insert(thread_of(event));
  return threads;
}

}  // namespace

std::map<std::string, double> traced_modules(const Path& trace) {
  const auto json = nlohmann::json::parse(read_text_file(trace), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("traceEvents") || !json["traceEvents"].is_array()) return {};
  const nlohmann::json& events = json["traceEvents"];
  const std::set<std::pair<double, double>> devices = device_threads(events);
  std::map<std::string, std::map<double, double>> by_rank;
  for (const auto& event : events) {
    const std::string name = text(event, "name");
    if (!is_module(name) || (!devices.empty() && !devices.contains(thread_of(event)))) continue;
    by_rank[module_name(name)][number(event, "pid")] += 1e-6 * number(event, "dur");
  }
  const nlohmann::json facts = json.contains("otherData") ? json["otherData"] : nlohmann::json::object();
  const double iterations = std::max(1.0, number(facts, "last_iteration") - number(facts, "first_iteration") + 1);
  std::map<std::string, double> modules;
  for (const auto& [name, ranks] : by_rank) {
    for (const auto& [rank, seconds] : ranks) modules[name] += seconds;
    modules[name] /= static_cast<double>(ranks.size()) * iterations;
  }
  return modules;
}

MeasuredRun read_measured_run(const Path& run) {
  std::error_code error;
  const Path file = std::filesystem::is_directory(run, error) ? run / "metrics.jsonl" : run;
  check_input(std::filesystem::is_regular_file(file, error), "--from_run=", run.string(), ": there is no file ",
              file.string());
  std::vector<MeasuredRun> steps;
  std::map<std::string, double> peaks;
  for (const std::string& line : split(read_text_file(file), '\n')) {
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (text(object, "type") == "ranks") peaks = peaks_of(object);
    if (!is_step(object)) continue;
    steps.push_back({.seconds = number(object, "elapsed_ms") / 1e3,
                     .bubble = number(object, "bubble"),
                     .exposed_communication = number(object, "exposed_communication"),
                     .peak_memory_bytes = number(object, "peak_memory_bytes")});
  }
  check_input(steps.size() >= 2, file.string(), ": has ", steps.size(),
              " lines of steps; the first begins with the start, so two are needed (logging.log_interval)");
  steps.erase(steps.begin());
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::ranges::nth_element(steps, middle, {}, &MeasuredRun::seconds);
  MeasuredRun found = *middle;
  for (const MeasuredRun& step : steps)
    found.peak_memory_bytes = std::max(found.peak_memory_bytes, step.peak_memory_bytes);
  found.peak_by_class = std::move(peaks);
  if (const Path trace = newest_trace(file.parent_path()); !trace.empty()) found.modules = traced_modules(trace);
  return found;
}

}  // namespace mcpp
