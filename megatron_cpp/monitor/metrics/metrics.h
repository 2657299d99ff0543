// Training metrics: the log line, the progress line of a terminal, and metrics.jsonl.
#pragma once
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/io/append_file.h"
#include "base/types.h"
#include "comm/communicator.h"
#include "megatron_cpp/config/sections/logging_config.h"
#include "megatron_cpp/monitor/rank_report.h"
#include "megatron_cpp/monitor/statistics.h"

namespace mcpp {

// Duration of the parts of an iteration on every rank, as reported by Megatron-LM's timers.

/// One part of an iteration, such as "forward-compute".
struct TimerStats {
  struct RankTime {
    int rank;
    double ms;  ///< milliseconds per iteration
  };
  std::string name;
  std::vector<RankTime> ranks;  ///< ranks that have this part

  double min() const;
  double max() const;
};

/// Gathers the timers of all ranks by name. Collective. `seconds` holds this rank's total for each name over
/// `iterations` iterations.
std::vector<TimerStats> gather_timers(const std::map<std::string, double>& seconds, double iterations,
                                      Communicator& world);

/// Formats the timers as Megatron-LM's log lines; "" without timers.
std::string timer_lines(const std::vector<TimerStats>& timers, TimingLogOption option);

/// One logged iteration. Times and rates are means since the previous line.
struct IterationStats {
  i64 iteration = 0;  ///< counted from 1
  i64 train_iters = 0;
  i64 consumed_samples = 0;
  double elapsed_ms = 0;  ///< milliseconds per iteration
  double learning_rate = 0;
  double weight_decay = 0;
  i64 global_batch_size = 0;
  double lm_loss = 0;
  double loss_scale = 1;
  double grad_norm = 0;
  i64 skipped_iterations = 0;  ///< number since the previous line
  i64 nan_iterations = 0;
  double tokens_per_second = 0;                ///< rate of all devices together
  double tflops = 0;                           ///< TFLOP/s per device
  std::optional<double> mfu;                   ///< fraction of the device's peak, 0 to 1, if the peak is known
  double eta_seconds = 0;                      ///< time until the end of training
  std::vector<ExpertLayerStats> experts = {};  ///< statistics by layer, for the last iteration
  std::vector<RankStats> ranks = {};           ///< statistics by rank; for log lines of runs with several ranks
  std::vector<TimerStats> timers = {};         ///< timers; for log lines
  std::optional<double> params_norm = {};      ///< norm of the weights in the last iteration
  std::optional<double> num_zeros = {};        ///< zeros in the gradient of the last iteration
};

/// Fills in tokens_per_second, tflops, mfu and eta_seconds from elapsed_ms and the work of one iteration: `tokens` and
/// `flops` on `devices` devices with a peak of `peak_tflops` each (0 = unknown).
void set_rates(IterationStats& stats, double tokens, double flops, double peak_tflops, i64 devices = 1);

/// Formats Megatron-LM's log line, field for field, so that tools for its logs can read ours, followed by tokens/s, MFU
/// and ETA. A NaN loss is printed as nan.
std::string iteration_line(const IterationStats& stats, std::chrono::system_clock::time_point now);

/// Formats a short line for terminals: "iteration 12/100
/// loss 4.567
/// 12.3K tokens/s
/// ETA 3m05s".
std::string progress_line(const IterationStats& stats);

struct ValidationStats {
  i64 iteration = 0;
  std::string split;  ///< "validation", "validation-<set>" or "test"
  double lm_loss = 0;
  i64 tokens = 0;

  double perplexity() const;  ///< exp(min(20, loss)), as in Megatron-LM
};

/// Formats Megatron-LM's line for an evaluation, framed by dashes.
std::string validation_lines(const ValidationStats& stats);

/// Description of a run when it starts or resumes.
struct RunStart {
  i64 iteration = 0;  ///< last completed iteration; 0 for a new run
  i64 train_iters = 0;
  i64 world_size = 1;
  std::string host;     ///< host of rank 0
  std::string program;  ///< program and its version
  std::string device;
  std::string config;  ///< complete configuration, as formatted by print_config()
};

/// Event other than a step.
struct RunEvent {
  enum class Kind : u8 { Save, Skip, Spike, RollBack, Stop, End, Failure };
  Kind kind = Kind::Save;
  i64 iteration = 0;
  std::string text;  ///< text as in the log
};

/// Text generated from logging.sample_prompt.
struct TextSample {
  i64 iteration = 0;
  std::string prompt, text;
};

/// Statistics of each rank, in rank order.
struct RankTable {
  i64 iteration = 0;
  std::vector<RankStats> ranks;
};

/// Appends one JSON object per line to a file (AppendFile). Non-finite values are written as null.
///
/// A run resumed at iteration N keeps the lines up to N and drops later ones, whose iterations are computed again, as
/// well as a line truncated by a crash; therefore no iteration appears twice. A new run (N = 0) renames an existing
/// file to <path>.old.
class MetricsWriter {
 public:
  /// Opens the file; writes nothing if the path is empty. Throws BadInput if the file cannot be opened.
  MetricsWriter(const Path& path, i64 resumed_iteration, StoredRef<Log> log);

  /// Returns true if the file contains such an evaluation at the iteration from which the run was resumed, or later.
  bool has_evaluation(const std::string& split, i64 iteration) const {
    return evaluations_.contains({split, iteration});
  }

  void write(const IterationStats& stats);   ///< {"type": "train", "iteration": ..., "time": UTC}
  void write(const ValidationStats& stats);  ///< {"type": split, "iteration": ...}
  void write(const RunStart& start);         ///< {"type": "run", "iteration": ...}
  void write(const RunEvent& event);         ///< {"type": "event", "iteration": ..., "event": "save", ...}
  void write(const TextSample& sample);      ///< {"type": "sample", "iteration": ..., "prompt": ..., "text": ...}
  void write(const RankTable& table);        ///< {"type": "ranks", "iteration": ...}, a list of values for each column
  /// {"type": "layer_statistics", "iteration": ..., "layers": a list}
  void write_layers(i64 iteration, const StepStatistics& step);

 private:
  std::set<std::pair<std::string, i64>> evaluations_;  // (split, iteration)
  AppendFile file_;
};

// Aggregates the steps since the last log line.

/// Work per sample, for throughput.
struct SampleWork {
  double tokens = 0, flops = 0;   ///< work per sample
  double peak_tflops = 0;         ///< peak per device; 0 = unknown
  bool is_peak_measured = false;  ///< a faster step raises the peak, whose measurement was disturbed by other load
  i64 devices = 1;
};

/// Accumulates finished steps. Each comes with the time that the rank had spent when the step was queued.
class LogWindow {
 public:
  explicit LogWindow(const SampleWork& work) : work_(work) {}

  /// Starts counting steps at `now`.
  void begin(const RankTimings& now) { begin_ = end_ = step_begin_ = now; }
  /// Excludes `passed` from the training time.
  void exclude_from_timing(const RankTimings& passed);
  /// Adds a step. All of `step` is filled in except for times, rates and ranks; its counts of skipped iterations and of
  /// iterations without a finite loss are 0 or 1.
  void add(const IterationStats& step, const RankTimings& end);
  /// Starts a new window where this one ends; called after a log line.
  void restart();

  bool is_empty() const { return iterations_ == 0; }
  i64 iterations() const { return iterations_; }
  /// Returns the peak of one device in TFLOP/s: as configured, or that of the fastest step if it may be raised.
  double peak_tflops() const { return work_.peak_tflops; }
  /// Returns the time that this rank spent in the window.
  RankTimings seconds() const { return end_ - begin_; }
  /// Returns times and rates as means over the window, and the loss of the last step.
  const IterationStats& means() const { return means_; }
  /// Returns the mean loss of the steps that were not skipped; NaN if there are none.
  double mean_loss() const { return loss_sum_ / static_cast<double>(losses_); }
  /// Returns only the last step; its loss is NaN if it was skipped.
  const IterationStats& last() const { return last_; }

 private:
  void set_rates(IterationStats& stats, double samples) const;

  SampleWork work_;
  IterationStats means_, last_;
  double loss_sum_ = 0;
  i64 losses_ = 0, iterations_ = 0, samples_ = 0;
  RankTimings begin_, end_, step_begin_;
};

}  // namespace mcpp
