#include "megatron_cpp/monitor/run_metrics.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/check.h"
#include "base/strings.h"
#include "megatron_cpp/monitor/trace.h"

namespace mcpp {
namespace {

/// Returns a number, or 0 if missing.
double number(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return 0;
  const auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<double>() : 0;
}

/// Returns true for plausible bytes, milliseconds or fractions; damaged files may contain other values.
bool is_amount(double value) {
  constexpr double kMaxPlausible = 1e18;
  return value >= 0 && value <= kMaxPlausible;
}

/// Returns a number of ranks or iterations, or 0 if there is no plausible one.
i64 get_count(const nlohmann::json& object, const char* key) {
  constexpr double kMaxPlausible = 1e12;
  const double value = number(object, key);
  return value >= 0 && value <= kMaxPlausible ? static_cast<i64>(value) : 0;
}

/// Returns a string, or "" if missing.
std::string text(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

bool is_step(const nlohmann::json& object) {
  if (!object.is_object() || number(object, "elapsed_ms") <= 0 || !is_amount(number(object, "elapsed_ms")))
    return false;
  return text(object, "type") == "train";
}

/// Returns the elements of a list with one number per rank; empty if there is no such list.
std::vector<double> rank_values(const nlohmann::json& object, const std::string& key) {
  std::vector<double> list;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return list;
  for (const auto& value : *it)
    if (value.is_number() && is_amount(value.get<double>())) list.push_back(value.get<double>());
  return list;
}

double max_value(const std::vector<double>& list) {
  return list.empty() ? 0 : *std::ranges::max_element(list);
}

double mean(const std::vector<double>& list) {
  return list.empty() ? 0 : std::accumulate(list.begin(), list.end(), 0.0) / static_cast<double>(list.size());
}

/// Converts a table of ranks to the measurement of a step.
MeasuredRun make_measured_run(const nlohmann::json& table) {
  MeasuredRun reported{.bubble = mean(rank_values(table, "bubble")),
                       .exposed_communication = mean(rank_values(table, "exposed_communication")),
                       .peak_memory_bytes = max_value(rank_values(table, "peak_memory_bytes")),
                       .in_host_bytes = max_value(rank_values(table, "in_host_bytes")),
                       .on_disk_bytes = max_value(rank_values(table, "on_disk_bytes"))};
  for (const double ms : rank_values(table, "compute_ms")) reported.computing_by_rank.push_back(1e-3 * ms);
  if (const auto classes = table.find("peak_by_class"); classes != table.end() && classes->is_object())
    for (const auto& [name, ranks] : classes->items())
      reported.peak_by_class[name] = max_value(rank_values(*classes, name));
  return reported;
}

/// Returns the trace of the latest iterations after `start`, where the run started or resumed; earlier traces may
/// belong to a different layout. Returns an empty path if there are no traces.
Path newest_trace(const Path& folder, i64 start) {
  const std::string first = trace_prefix(start + 1);
  Path newest;
  for (const Path& directory : {folder, folder / "traces"}) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
      const std::string name = entry.path().filename();
      const bool is_trace = name.starts_with(kTracePrefix) && name.ends_with(".json") && name >= first;
      if (is_trace && (newest.empty() || newest.filename() < entry.path().filename())) newest = entry.path();
    }
  }
  return newest;
}

/// Returns "output_layer" for "output_layer and loss": its forward and backward ranges have different names.
std::string module_name(const std::string& range) {
  return range.substr(0, range.find(' '));
}

bool is_module(const std::string& name) {
  return name == "embedding" || name.starts_with("decoder.layers.") || name.starts_with("output_layer");
}

/// Returns process and thread.
std::pair<double, double> thread_of(const nlohmann::json& event) {
  return {number(event, "pid"), number(event, "tid")};
}

/// Returns the device threads. On a GPU, host ranges only show when work was queued, so the thread "device" is used.
std::set<std::pair<double, double>> device_threads(const nlohmann::json& events) {
  std::set<std::pair<double, double>> threads;
  for (const auto& event : events)
    if (text(event, "name") == "thread_name" && event.contains("args") && text(event["args"], "name") == "device")
      threads.insert(thread_of(event));
  return threads;
}

/// Contents of metrics.jsonl since the last start, by iteration.
struct RunLines {
  MeasuredRun start;   ///< ranks and configuration at the start
  i64 iterations = 0;  ///< iterations completed before the start
  std::map<double, MeasuredRun> steps, tables;
};

RunLines read_lines(const Path& file) {
  RunLines lines;
  for (const std::string& line : split(read_text_file(file), '\n')) {
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const std::string type = text(object, "type");
    const double iteration = number(object, "iteration");
    // A resumed run may use a different layout.
    if (type == "run")
      lines = {.start = {.world_size = get_count(object, "world_size"), .config = text(object, "config")},
               .iterations = get_count(object, "iteration"),
               .steps = {},
               .tables = {}};
    if (type == "ranks") lines.tables[iteration] = make_measured_run(object);
    if (is_step(object))
      lines.steps[iteration] = {.seconds = number(object, "elapsed_ms") / 1e3,
                                .bubble = number(object, "bubble"),
                                .exposed_communication = number(object, "exposed_communication"),
                                .peak_memory_bytes = number(object, "peak_memory_bytes")};
  }
  return lines;
}

/// Returns all steps but the first, whose start time is unknown. If any have a table of ranks, returns only these.
std::vector<MeasuredRun> select_steps(const RunLines& lines) {
  std::vector<MeasuredRun> all, reported;
  for (auto step = std::next(lines.steps.begin()); step != lines.steps.end(); ++step) {
    all.push_back(step->second);
    if (const auto table = lines.tables.find(step->first); table != lines.tables.end()) {
      reported.push_back(table->second);
      reported.back().seconds = step->second.seconds;
    }
  }
  return reported.empty() ? all : reported;
}

/// Returns the seconds per iteration of each module.
std::map<std::string, double> seconds_by_module(const nlohmann::json& events, const nlohmann::json& metadata) {
  const std::set<std::pair<double, double>> devices = device_threads(events);
  std::map<std::string, std::map<double, double>> rank_values;
  for (const auto& event : events) {
    const std::string name = text(event, "name");
    if (!is_module(name) || (!devices.empty() && !devices.contains(thread_of(event)))) continue;
    const double microseconds = number(event, "dur");
    if (is_amount(microseconds)) rank_values[module_name(name)][number(event, "pid")] += 1e-6 * microseconds;
  }
  const double iterations = std::max(1.0, number(metadata, "last_iteration") - number(metadata, "first_iteration") + 1);
  std::map<std::string, double> modules;
  for (const auto& [name, ranks] : rank_values) {
    for (const auto& [rank, seconds] : ranks) modules[name] += seconds;
    modules[name] /= static_cast<double>(ranks.size()) * iterations;
  }
  return modules;
}

/// Returns the mean bytes of each module over the ranks that report it.
BytesByModule bytes_by_module(const nlohmann::json& ranks) {
  std::map<std::string, std::map<std::string, std::vector<double>>> reported;
  for (const auto& rank : ranks) {
    if (!rank.is_object() || !rank.contains("memory_bytes_by_module")) continue;
    const nlohmann::json& modules = rank["memory_bytes_by_module"];
    if (!modules.is_object()) continue;
    for (const auto& [module, classes] : modules.items()) {
      if (!classes.is_object()) continue;
      for (const auto& [name, bytes] : classes.items())
        if (bytes.is_number() && is_amount(bytes.get<double>())) reported[module][name].push_back(bytes.get<double>());
    }
  }
  BytesByModule means;
  for (const auto& [module, classes] : reported)
    for (const auto& [name, values] : classes) means[module][name] = mean(values);
  return means;
}

}  // namespace

TracedModules traced_modules(const Path& trace) {
  const auto json = nlohmann::json::parse(read_text_file(trace), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("traceEvents") || !json["traceEvents"].is_array()) return {};
  const nlohmann::json metadata = json.contains("otherData") ? json["otherData"] : nlohmann::json::object();
  TracedModules modules{.seconds = seconds_by_module(json["traceEvents"], metadata)};
  const auto ranks = metadata.find("ranks");
  if (!metadata.is_object() || ranks == metadata.end() || !ranks->is_array()) return modules;
  modules.ranks = static_cast<i64>(ranks->size());
  modules.bytes = bytes_by_module(*ranks);
  return modules;
}

MeasuredRun read_measured_run(const Path& run) {
  std::error_code error;
  const Path file = std::filesystem::is_directory(run, error) ? run / "metrics.jsonl" : run;
  check_input(std::filesystem::is_regular_file(file, error), "--from_run=", run.string(),
              ": no such file: ", file.string());
  const RunLines lines = read_lines(file);
  check_input(lines.steps.size() >= 2, file.string(), ": has ", lines.steps.size(),
              lines.steps.size() == 1 ? " log line" : " log lines",
              " since the last start; the first includes start-up, so two are needed (logging.log_interval)");
  std::vector<MeasuredRun> steps = select_steps(lines);
  const auto middle = steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2);
  std::ranges::nth_element(steps, middle, {}, &MeasuredRun::seconds);
  MeasuredRun measured = *middle;
  for (const MeasuredRun& step : steps)
    measured.peak_memory_bytes = std::max(measured.peak_memory_bytes, step.peak_memory_bytes);
  if (!lines.tables.empty()) {  // peaks since start-up
    const MeasuredRun& last = lines.tables.rbegin()->second;
    measured.peak_by_class = last.peak_by_class;
    measured.in_host_bytes = last.in_host_bytes, measured.on_disk_bytes = last.on_disk_bytes;
  }
  measured.world_size = lines.start.world_size, measured.config = lines.start.config;
  check_input(measured.bubble >= 0 && measured.exposed_communication >= 0 && measured.computing() > 0, file.string(),
              ": records a step without compute time: bubble ", measured.bubble, ", exposed_communication ",
              measured.exposed_communication);
  if (const Path trace = newest_trace(file.parent_path(), lines.iterations); !trace.empty()) {
    TracedModules traced = traced_modules(trace);
    if (traced.ranks == 0 || measured.world_size == 0 || traced.ranks == measured.world_size)
      measured.modules = std::move(traced.seconds), measured.module_bytes = std::move(traced.bytes);
  }
  return measured;
}

}  // namespace mcpp
