#include "megatron_cpp/monitor/run_metrics.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/strings.h"

namespace mcpp {
namespace {

/// A number, or 0 where there is none.
double number(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

bool is_step(const nlohmann::json& object) {
  if (!object.is_object() || number(object, "elapsed_ms") <= 0) return false;
  const auto type = object.find("type");
  return type != object.end() && *type == "train";
}

}  // namespace

MeasuredRun read_measured_run(const Path& run) {
  std::error_code error;
  const Path file = std::filesystem::is_directory(run, error) ? run / "metrics.jsonl" : run;
  check_input(std::filesystem::is_regular_file(file, error), "--from_run=", run.string(), ": there is no file ",
              file.string());
  std::vector<MeasuredRun> steps;
  for (const std::string& line : split(read_text_file(file), '\n')) {
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
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
  return found;
}

}  // namespace mcpp
