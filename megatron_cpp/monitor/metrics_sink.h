// Records of a training run, and the interface of the destinations that they are written to.
#pragma once
#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "megatron_cpp/config/sections/logging_config.h"
#include "megatron_cpp/monitor/rank_report.h"
#include "megatron_cpp/monitor/statistics.h"

namespace mcpp {

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
  std::vector<double> mtp_losses = {};  ///< loss of each layer of multi-token prediction in the last iteration
  double output_z_loss = 0;             ///< z-loss of the output in the last iteration; 0 = none
  double loss_scale = 1;
  double grad_norm = 0;
  i64 skipped_iterations = 0;  ///< number of skipped iterations since the previous line
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
  std::vector<LayerLogits> logits = {};        ///< attention logits by layer in the last iteration, if recorded
};

/// One finished step.
struct StepRecord {
  const IterationStats& step;        ///< values of this step only; the loss is NaN if the step was skipped
  const IterationStats& means;       ///< means over the steps since the last log line
  const StepStatistics& statistics;  ///< optional statistics of the weights and the gradient of the step
  MemoryUse memory = {};             ///< memory of rank 0's tensors
};

/// Result of an evaluation.
struct ValidationStats {
  i64 iteration = 0;
  std::string split;  ///< "validation", "validation-<set>" or "test", after "ema-" for the averaged weights
  double lm_loss = 0;
  i64 tokens = 0;
  i64 consumed_samples = 0;  ///< samples that training has read

  double perplexity() const;  ///< exp(min(20, loss)), as in Megatron-LM
};

/// Result of a task, training.eval_tasks.
struct TaskStats {
  struct Metric {
    std::string name;  ///< as TaskMetric::name
    double value = 0;
    std::optional<double> standard_error = {};
  };
  i64 iteration = 0;
  std::string task;
  i64 items = 0;
  i64 consumed_samples = 0;  ///< samples that training has read
  std::vector<Metric> metrics = {};

  /// Returns the name among the evaluations of a run, "task-<task>".
  std::string split() const { return "task-" + task; }
};

/// Description of a run when it starts or resumes.
struct RunStart {
  i64 iteration = 0;  ///< last completed iteration; 0 for a new run
  i64 train_iters = 0;
  i64 world_size = 1;
  std::string stage = {};  ///< name of the stage; empty for a run without stages
  std::string host;        ///< host of rank 0
  std::string program;     ///< program and its version
  std::string device;
  std::string config;  ///< complete configuration, as formatted by print_config()
};

/// Event of a run, other than a step.
struct RunEvent {
  enum class Kind : u8 { Save, Skip, Spike, RollBack, Stop, End, Failure, Straggler, Stage, Cause, Rerun };
  enum class Console : u8 { Info, Warning, None };
  Kind kind = Kind::Save;
  i64 iteration = 0;
  std::string text;
  Console console = Console::Info;  ///< how the console displays the event; None if the caller has already logged it
};

template <>
struct EnumNames<RunEvent::Kind> {
  static constexpr auto value = kEventNames;
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

/// Position from which a run continues.
struct ResumePoint {
  i64 iteration = 0;  ///< 0 for a new run
  i64 consumed_samples = 0;
  /// Splits evaluated at this iteration, according to metrics.jsonl; other evaluations will be repeated.
  std::set<std::string> evaluations = {};
};

/// Destination of the records of a training run, on rank 0. A sink overrides the functions for the records that it
/// writes. The constructor changes nothing that an earlier run wrote. begin() throws BadInput if the destination cannot
/// be opened; check_save_folders() finds that before the model is built. The functions that write log a warning instead
/// of throwing.
class MetricsSink {
 public:
  virtual ~MetricsSink() = default;

  /// Prepares the destination; called once, before the first record. A sink that keeps records of earlier starts drops
  /// the records after `at.iteration`, since they will be written again, and the evaluations at `at.iteration` that are
  /// not in `at.evaluations`.
  virtual void begin(ResumePoint&) {}
  virtual void write_start(const RunStart&) {}
  /// Writes a step; called after every step, one step late.
  virtual void write_step(const StepRecord&) {}
  /// Writes the means of the steps since the last call; called every logging.log_interval steps.
  virtual void write_line(const IterationStats&) {}
  /// Writes the statistics of the ranks; called before write_line().
  virtual void write_ranks(const RankTable&) {}
  virtual void write_evaluation(const ValidationStats&) {}
  virtual void write_task(const TaskStats&) {}
  virtual void write_sample(const TextSample&) {}
  virtual void write_event(const RunEvent&) {}
};

}  // namespace mcpp
