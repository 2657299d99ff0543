// Metrics and events over OTLP/HTTP, the protocol of OpenTelemetry collectors, Grafana and Prometheus.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "megatron_cpp/monitor/background_delivery.h"
#include "megatron_cpp/monitor/metrics_sink.h"

namespace mcpp {

/// Destination of OTLP messages, and the attributes that identify the run.
struct OtlpTarget {
  std::string endpoint;              ///< e.g. "http://localhost:4318"; "/v1/metrics" and "/v1/logs" are appended
  std::vector<std::string> headers;  ///< "name: value", sent with each request
  std::string service = "megatron_cpp";
  std::vector<std::pair<std::string, std::string>> attributes = {};  ///< of the resource
};

/// Returns the target of an endpoint for the run in folder `run` ("" = none), with the headers, service name and
/// attributes of the standard variables OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES,
/// whose values are percent-encoded. Throws BadInput if one is malformed.
OtlpTarget otlp_target(std::string endpoint, const std::string& run);

/// Sends log lines and evaluations as gauges, and events as log records, in the JSON encoding of OTLP 1
/// (opentelemetry.io/docs/specs/otlp). Delivery does not delay training (BackgroundDelivery). Non-finite values are
/// omitted. docs/logging_and_profiling.md lists the names.
class OtlpSink final : public MetricsSink {
 public:
  OtlpSink(OtlpTarget target, StoredRef<Log> log, BackgroundDelivery::Limits limits = {});

  void write_start(const RunStart& start) override;
  void write_line(const IterationStats& line) override;
  void write_evaluation(const ValidationStats& stats) override;
  void write_task(const TaskStats& stats) override;
  void write_event(const RunEvent& event) override;

 private:
  /// Metrics with one data point each.
  struct Points;
  void send_metrics(Points points);
  /// Sends {list: [{resource, scoped_list: [{scope, record_list: records}]}]}.
  void send(const char* path, const char* list, const char* scoped_list, OrderedJson records, const char* record_list);

  const OtlpTarget target_;
  OrderedJson resource_ = OrderedJson::array();
  std::unique_ptr<BackgroundDelivery> delivery_;  // last member: its thread uses `target_`
};

}  // namespace mcpp
