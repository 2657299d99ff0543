// Configuration of logs and metrics. Keys have the names of Megatron-LM where it has the same key.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"

namespace mcpp {

/// Times to log: the maximum over ranks, the minimum and maximum, or the times of all ranks.
enum class TimingLogOption { Max, Minmax, All };

template <>
struct EnumNames<TimingLogOption> {
  static constexpr std::array<std::string_view, 3> value{"max", "minmax", "all"};
};

/// Events of a run.
inline constexpr std::array<std::string_view, 11> kEventNames{
    "save", "skip", "spike", "roll back", "stop", "end", "failure", "straggler", "stage", "cause", "rerun"};

struct LoggingConfig {
  i64 log_interval = 10;
  bool show_progress = true;
  std::string metrics_path;
  bool metrics_every_iteration = false;
  double peak_tflops = 0;
  std::string sample_prompt;
  i64 sample_tokens = 32;
  std::string tensorboard_dir;
  i64 tensorboard_log_interval = 1;
  i64 profile_step_start = 0;
  i64 profile_step_end = 0;
  std::vector<i64> profile_ranks;
  std::string profile_dir;
  i64 timing_log_level = 0;
  TimingLogOption timing_log_option = TimingLogOption::Minmax;
  double straggler_factor = 1.5;
  bool log_params_norm = false;
  bool log_num_zeros_in_grad = false;
  bool log_max_attention_logit = false;
  i64 log_layer_statistics_interval = 0;
  i64 tensorboard_histogram_interval = 0;
  std::string otlp_endpoint;
  std::string alert_command;
  std::string alert_webhook;
  std::vector<std::string> alert_events{"spike", "roll back", "straggler", "stop", "failure", "end"};

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("log_interval", self.log_interval, "iterations between two log lines", at_least(1));
    visit("show_progress", self.show_progress,
          "show a live status line, updated at every iteration, if the output is a terminal");
    visit("metrics_path", self.metrics_path,
          "file for one JSON object per log line; empty = metrics.jsonl in checkpoint.save, if set");
    visit("metrics_every_iteration", self.metrics_every_iteration,
          "write a JSON object to metrics_path for every iteration instead of means per log line");
    visit("peak_tflops", self.peak_tflops,
          "peak TFLOP/s of one device, the denominator of MFU; 0 = from the data sheet of a known GPU, else measured",
          at_least(0));
    visit("sample_prompt", self.sample_prompt,
          "prompt that the model continues at each evaluation of the validation set; the text is written to the "
          "metrics; empty = none");
    visit("sample_tokens", self.sample_tokens,
          "maximum number of tokens generated for sample_prompt, limited by the sequence length; each token costs the "
          "forward pass of a sample",
          at_least(1));
    visit("tensorboard_dir", self.tensorboard_dir, "folder for TensorBoard event files; empty = none are written");
    visit("tensorboard_log_interval", self.tensorboard_log_interval,
          "iterations between two points of the TensorBoard curves", at_least(1));
    visit("profile_step_start", self.profile_step_start, "iteration after which the trace begins", at_least(0));
    visit("profile_step_end", self.profile_step_end, "last iteration of the trace; 0 = no trace", at_least(0));
    visit("profile_ranks", self.profile_ranks, "ranks to include in a trace; empty = all", at_least(0));
    visit("profile_dir", self.profile_dir, "folder for traces; empty = traces in checkpoint.save");
    visit("timing_log_level", self.timing_log_level,
          "timers shown with a log line: 0 = none; 1 = phases of an iteration; 2 = also passes, waits and collectives",
          between(0, 2));
    visit("timing_log_option", self.timing_log_option,
          "times to log: max = maximum over ranks, minmax = minimum and maximum, all = all ranks");
    visit("straggler_factor", self.straggler_factor,
          "warn about ranks that take this many times longer to compute than ranks with the same work, and about "
          "groups whose communication is this many times slower; 0 = no warnings",
          at_least(0));
    visit("log_params_norm", self.log_params_norm, "log the L2 norm of all weights, also to TensorBoard");
    visit("log_num_zeros_in_grad", self.log_num_zeros_in_grad,
          "log the number of zeros in the gradient, also to TensorBoard");
    visit("log_max_attention_logit", self.log_max_attention_logit,
          "log the largest attention logit (scaled score) of each layer in a step, also to TensorBoard");
    visit("log_layer_statistics_interval", self.log_layer_statistics_interval,
          "iterations between two tables with the norms and the activation size of each layer; 0 = none", at_least(0));
    visit("tensorboard_histogram_interval", self.tensorboard_histogram_interval,
          "iterations between two histograms of the weights and gradient of every parameter; 0 = none", at_least(0));
    visit("otlp_endpoint", self.otlp_endpoint,
          "URL of an OpenTelemetry collector, e.g. http://localhost:4318; receives log lines, evaluations and events; "
          "empty = none");
    visit("alert_command", self.alert_command,
          "shell command run on rank 0 at each of alert_events; its standard input is a JSON object; empty = none");
    visit("alert_webhook", self.alert_webhook,
          "URL to which the JSON object of each of alert_events is posted, or $NAME for an environment variable with "
          "the URL; empty = none");
    visit("alert_events", self.alert_events,
          "events that alert: save, skip, spike, roll back, straggler, stage, stop, failure, end");
  }

  bool has_alerts() const { return !alert_command.empty() || !alert_webhook.empty(); }

  /// Returns every violated rule between fields, as "logging.key: problem and allowed values".
  std::vector<std::string> conflicts() const;
};

}  // namespace mcpp
