#include "megatron_cpp/monitor/otlp_sink.h"

#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/io/http_client.h"
#include "base/strings.h"

namespace mcpp {
namespace {

constexpr const char* kMetricsPath = "/v1/metrics";
constexpr const char* kLogsPath = "/v1/logs";
constexpr double kRequestTimeout = 5;  // seconds; the end of the run waits for a request in flight

/// Returns the nanoseconds since 1970. OTLP writes 64-bit integers as strings.
std::string unix_nanoseconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

OrderedJson attribute(const std::string& key, const std::string& value) {
  return {{"key", key}, {"value", {{"stringValue", value}}}};
}

std::optional<int> hex_digit(char c) {
  const std::size_t digit =
      std::string_view("0123456789abcdef").find(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  return digit == std::string_view::npos ? std::nullopt : std::optional(static_cast<int>(digit));
}

/// Returns the text without spaces at its ends, in which "%20" and the like are replaced by the character.
std::string decoded(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_code = text[i] == '%' && i + 2 < text.size();
    const auto high = is_code ? hex_digit(text[i + 1]) : std::nullopt, low = high ? hex_digit(text[i + 2]) : high;
    result += low ? static_cast<char>(16 * *high + *low) : text[i];
    if (low) i += 2;
  }
  return result;
}

/// Returns the pairs of "key=value,key=value", the format of OpenTelemetry's variables.
std::vector<std::pair<std::string, std::string>> read_pairs(const char* variable) {
  std::vector<std::pair<std::string, std::string>> pairs;
  const char* const text = std::getenv(variable);
  if (!text || !*text) return pairs;
  for (const std::string& item : split(text, ',')) {
    const std::size_t equals = item.find('=');
    check_input(equals != std::string::npos && equals > 0, "environment variable ", variable, ": \"", item,
                "\" is not of the form key=value");
    const std::string_view pair = item;
    pairs.emplace_back(decoded(pair.substr(0, equals)), decoded(pair.substr(equals + 1)));
  }
  return pairs;
}

/// Names of severities and their OTLP numbers.
std::pair<int, const char*> severity_of(const RunEvent& event) {
  switch (event.kind) {
    case RunEvent::Kind::Failure:
      return {17, "ERROR"};
    case RunEvent::Kind::Skip:
    case RunEvent::Kind::Spike:
    case RunEvent::Kind::RollBack:
    case RunEvent::Kind::Straggler:
    case RunEvent::Kind::Cause:
    case RunEvent::Kind::Rerun:
      return {13, "WARN"};
    case RunEvent::Kind::Save:
    case RunEvent::Kind::Stage:
    case RunEvent::Kind::Stop:
    case RunEvent::Kind::End:
      return {9, "INFO"};
  }
  return {9, "INFO"};
}

/// Posts a message: the path, a newline, and the body.
BackgroundDelivery::Result post(HttpClient& client, const OtlpTarget& target, const std::string& message) {
  const std::size_t end = message.find('\n');
  return post_json(client, target.endpoint + message.substr(0, end), target.headers, message.substr(end + 1),
                   kRequestTimeout);
}

}  // namespace

OtlpTarget otlp_target(std::string endpoint, const std::string& run) {
  while (endpoint.ends_with('/')) endpoint.pop_back();
  OtlpTarget target{.endpoint = std::move(endpoint), .headers = {}};
  for (const auto& [name, value] : read_pairs("OTEL_EXPORTER_OTLP_HEADERS"))
    target.headers.push_back(name + ": " + value);
  if (const char* const name = std::getenv("OTEL_SERVICE_NAME"); name && *name) target.service = name;
  target.attributes = read_pairs("OTEL_RESOURCE_ATTRIBUTES");
  if (!run.empty()) target.attributes.emplace_back("run.folder", run);
  return target;
}

struct OtlpSink::Points {
  std::string time = unix_nanoseconds();
  OrderedJson attributes = OrderedJson::array();
  OrderedJson metrics = OrderedJson::array();

  void add(const std::string& name, const std::string& unit, double value) {
    if (!std::isfinite(value)) return;
    add_point(name, unit, {{"asDouble", value}});
  }
  void add(const std::string& name, const std::string& unit, i64 value) {
    add_point(name, unit, {{"asInt", std::to_string(value)}});
  }

 private:
  void add_point(const std::string& name, const std::string& unit, OrderedJson point) {
    point["timeUnixNano"] = time;
    if (!attributes.empty()) point["attributes"] = attributes;
    metrics.push_back(
        {{"name", name}, {"unit", unit}, {"gauge", {{"dataPoints", OrderedJson::array({std::move(point)})}}}});
  }
};

OtlpSink::OtlpSink(OtlpTarget target, StoredRef<Log> log, BackgroundDelivery::Limits limits)
    : target_(std::move(target)) {
  delivery_ = std::make_unique<BackgroundDelivery>(
      "logging.otlp_endpoint " + target_.endpoint,
      [this, client = std::make_shared<HttpClient>()](const std::string& message) {
        return post(*client, target_, message);
      },
      log, limits);
}

void OtlpSink::write_start(const RunStart& start) {
  resource_ = OrderedJson::array({attribute("service.name", target_.service), attribute("host.name", start.host),
                                  attribute("run.device", start.device),
                                  attribute("run.world_size", std::to_string(start.world_size))});
  for (const auto& [key, value] : target_.attributes) resource_.push_back(attribute(key, value));
}

void OtlpSink::send(const char* path, const char* list, const char* scoped_list, OrderedJson records,
                    const char* record_list) {
  const OrderedJson scoped{{"scope", {{"name", "megatron_cpp"}}}, {record_list, std::move(records)}};
  const OrderedJson item{{"resource", {{"attributes", resource_}}}, {scoped_list, OrderedJson::array({scoped})}};
  const OrderedJson message{{list, OrderedJson::array({item})}};
  delivery_->push(str(path, '\n', message.dump(-1, ' ', false, OrderedJson::error_handler_t::replace)));
}

void OtlpSink::write_line(const IterationStats& line) {
  Points points;
  points.add("train.iteration", "{iteration}", line.iteration);
  points.add("train.consumed_samples", "{sample}", line.consumed_samples);
  points.add("train.lm_loss", "1", line.lm_loss);
  for (std::size_t i = 0; i < line.mtp_losses.size(); ++i)
    points.add(str("train.mtp_", i + 1, "_loss"), "1", line.mtp_losses[i]);
  points.add("train.grad_norm", "1", line.grad_norm);
  points.add("train.learning_rate", "1", line.learning_rate);
  points.add("train.loss_scale", "1", line.loss_scale);
  points.add("train.global_batch_size", "{sample}", line.global_batch_size);
  points.add("train.skipped_iterations", "{iteration}", line.skipped_iterations);
  points.add("train.step_time", "ms", line.elapsed_ms);
  points.add("train.throughput", "{token}/s", line.tokens_per_second);
  points.add("train.tflops", "TFLOP/s", line.tflops);
  if (line.mfu) points.add("train.mfu", "1", *line.mfu);
  if (line.params_norm) points.add("train.params_norm", "1", *line.params_norm);
  points.add("train.eta", "s", line.eta_seconds);
  if (!line.ranks.empty()) {
    const RankStats mean = mean_of(line.ranks);
    points.add("train.bubble", "1", mean.bubble);
    points.add("train.exposed_communication", "1", mean.exposed_communication);
    points.add("train.peak_memory", "By", mean.peak_memory_bytes);
  }
  send_metrics(std::move(points));
}

void OtlpSink::write_evaluation(const ValidationStats& stats) {
  Points points;
  points.attributes.push_back(attribute("split", stats.split));
  points.add("evaluation.lm_loss", "1", stats.lm_loss);
  points.add("evaluation.perplexity", "1", stats.perplexity());
  points.add("evaluation.iteration", "{iteration}", stats.iteration);
  send_metrics(std::move(points));
}

void OtlpSink::write_task(const TaskStats& stats) {
  Points points;
  points.attributes.push_back(attribute("task", stats.task));
  for (const TaskStats::Metric& metric : stats.metrics) points.add("task." + metric.name, "1", metric.value);
  points.add("task.iteration", "{iteration}", stats.iteration);
  send_metrics(std::move(points));
}

void OtlpSink::send_metrics(Points points) {
  send(kMetricsPath, "resourceMetrics", "scopeMetrics", std::move(points.metrics), "metrics");
}

void OtlpSink::write_event(const RunEvent& event) {
  const auto [number, name] = severity_of(event);
  const OrderedJson iteration{{"key", "iteration"}, {"value", {{"intValue", std::to_string(event.iteration)}}}};
  const OrderedJson record{
      {"timeUnixNano", unix_nanoseconds()},
      {"severityNumber", number},
      {"severityText", name},
      {"body", {{"stringValue", event.text}}},
      {"attributes", OrderedJson::array({attribute("event", std::string(enum_name(event.kind))), iteration})}};
  send(kLogsPath, "resourceLogs", "scopeLogs", OrderedJson::array({record}), "logRecords");
}

}  // namespace mcpp
