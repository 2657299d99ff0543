// Logs and metrics of a run. Names are Megatron-LM's where it has one.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"

namespace mcpp {

/// Ranks whose times are logged: the maximum, minimum and maximum, or all.
enum class TimingLogOption { Max, Minmax, All };

template <>
struct EnumNames<TimingLogOption> {
  static constexpr std::array<std::string_view, 3> value{"max", "minmax", "all"};
};

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
  i64 log_layer_statistics_interval = 0;
  i64 tensorboard_histogram_interval = 0;

  template <class Self, class Visitor>
  static void fields(Self& self, Visitor& visit) {
    visit("log_interval", self.log_interval, "iterations between two lines of the log", at_least(1));
    visit("show_progress", self.show_progress, "a live line, overwritten at every iteration, when there is a terminal");
    visit("metrics_path", self.metrics_path,
          "file that gets one JSON object per line of the log; empty = metrics.jsonl in checkpoint.save, if any");
    visit("metrics_every_iteration", self.metrics_every_iteration,
          "an object for every iteration, of that one alone, instead of means at each line of the log");
    visit("peak_tflops", self.peak_tflops,
          "peak of one device in TFLOP/s, that MFU is a share of; 0 = the data sheet's of a known GPU, else measured",
          at_least(0));
    visit("sample_prompt", self.sample_prompt,
          "text that the model continues at each evaluation of the validation set, for the metrics; empty = nothing");
    visit("sample_tokens", self.sample_tokens,
          "tokens of that at most, until the sequence is full; each costs the forward pass of a sample", at_least(1));
    visit("tensorboard_dir", self.tensorboard_dir, "folder for TensorBoard's event files; empty = none are written");
    visit("tensorboard_log_interval", self.tensorboard_log_interval, "iterations between two points of its curves",
          at_least(1));
    visit("profile_step_start", self.profile_step_start, "a trace has the iterations after this one ...", at_least(0));
    visit("profile_step_end", self.profile_step_end, "... up to this one; 0 = there is no trace", at_least(0));
    visit("profile_ranks", self.profile_ranks, "ranks whose ranges a trace has; empty = all", at_least(0));
    visit("profile_dir", self.profile_dir, "folder for traces; empty = traces in checkpoint.save");
    visit("timing_log_level", self.timing_log_level,
          "timers that a line of the log comes with: 0 = none; 1 = of the parts of an iteration; 2 = of passes, waits "
          "and "
          "collectives too",
          between(0, 2));
    visit("timing_log_option", self.timing_log_option, "of the times of all ranks: the max, min and max, or all");
    visit("straggler_factor", self.straggler_factor,
          "a rank that computes so many times as long as others that do the same is named, and a group that sends so "
          "slowly; 0 = none",
          at_least(0));
    visit("log_params_norm", self.log_params_norm, "the L2 norm of all weights, in the log and the curves");
    visit("log_num_zeros_in_grad", self.log_num_zeros_in_grad, "how many numbers of the gradient are zero, likewise");
    visit("log_layer_statistics_interval", self.log_layer_statistics_interval,
          "iterations between two tables with each layer's norms and the size of its activations; 0 = none",
          at_least(0));
    visit("tensorboard_histogram_interval", self.tensorboard_histogram_interval,
          "iterations between two histograms of every parameter's weights and gradient; 0 = none", at_least(0));
  }

  /// Returns every violated rule between fields, as "logging.key: what is wrong and what is allowed".
  std::vector<std::string> conflicts() const;
};

}  // namespace mcpp
