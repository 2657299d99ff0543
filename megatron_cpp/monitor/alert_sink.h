// Alerts about events of a run: a command or a webhook.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "megatron_cpp/config/sections/logging_config.h"
#include "megatron_cpp/monitor/background_delivery.h"
#include "megatron_cpp/monitor/metrics_sink.h"

namespace mcpp {

/// Runs logging.alert_command and posts to logging.alert_webhook at the events in logging.alert_events. Both receive a
/// JSON object: the command as its standard input, the webhook as its body. Its field "text" is a sentence, which
/// Slack, Mattermost and similar services display; the other fields are "event", "iteration", "run" and "host".
class AlertSink final : public MetricsSink {
 public:
  /// `run` is the folder of the run, or "".
  AlertSink(const LoggingConfig& config, std::string run, StoredRef<Log> log,
            BackgroundDelivery::Limits limits = {.max_closing_seconds = 10});

  void write_start(const RunStart& start) override { host_ = start.host; }
  void write_event(const RunEvent& event) override;

 private:
  std::vector<std::string> events_;
  std::string run_, host_;
  std::vector<std::unique_ptr<BackgroundDelivery>> receivers_;
};

/// Runs a command in a shell with `input` as its standard input. Kills it after `timeout_seconds`. Returns the reason
/// of a failure, or "".
std::string run_shell_command(const std::string& command, const std::string& input, double timeout_seconds);

}  // namespace mcpp
