// Training loop.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/stored_ref.h"
#include "checkpoint/directory/lock.h"
#include "megatron_cpp/monitor/step_trace.h"
#include "megatron_cpp/resume/checkpoint_saver.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/train/fault_injection.h"
#include "megatron_cpp/train/step_logger.h"
#include "megatron_cpp/train/step_progress.h"
#include "megatron_cpp/train/validation.h"
#include "optimizer/lr_schedule.h"

namespace mcpp {

class Trainer {
 public:
  /// Builds all objects of a run from `config` and resumes from the newest checkpoint, if there is one. Rank 0 logs.
  /// `predicted` is the planner's prediction of a step, to be compared with the measured steps, if requested.
  /// Collective, as are all member functions.
  Trainer(StoredRef<Config> config, Session& session, const SignalWatch& signals, StoredRef<Log> log,
          const std::optional<PredictedStep>& predicted);

  /// Trains until the end, a signal, exit_interval or exit_duration_in_mins, with saves, evaluations and logging. First
  /// runs evaluations that the previous run missed because it stopped before them. Returns Done, or Preempted after a
  /// signal.
  ExitCode train();

 private:
  /// Queued step whose outcome the host has not waited for.
  struct PendingStep {
    double learning_rate;
    double weight_decay;
    i64 batch_size;
    RankTimings timings;                   ///< when the step was queued
    std::map<std::string, double> timers;  ///< seconds of the queued work, by name
    StepStatistics statistics;             ///< statistics of its gradient
  };

  void run_iterations();
  /// Queues a step and then waits for the outcome of the previous one.
  void train_step();
  std::vector<MicroBatch> next_batches();
  /// Waits for the outcome of the pending step, if any, and handles it. Returns true if that replaced the weights of
  /// the model (rollback).
  bool finish_step();
  bool must_finish_step() const;
  /// Minutes. After steps of at least this length the host waits for the outcome immediately, at negligible cost, so
  /// that a signal on another node takes effect one step earlier.
  static constexpr double kLongStep = 0.1;
  /// Returns the number of queued steps since iteration 0; progress_ counts finished steps only.
  i64 iteration() const { return progress_.iteration + (pending_ ? 1 : 0); }
  bool is_due(i64 interval) const { return interval > 0 && iteration() % interval == 0; }
  void backward(i64 iteration, const std::vector<MicroBatch>& batches);
  void record(const StepOutcome& outcome, PendingStep& step);
  /// Returns true if a log line or a point of a curve is written for the iteration.
  bool should_log(i64 iteration) const;
  bool is_log_iteration(i64 iteration) const {
    return iteration % config_.logging.log_interval == 0 || iteration == 1 || iteration == end_.iterations;
  }
  bool apply_step_policy(const StepOutcome& outcome, i64 batch_size);
  void count_skip(const std::string& warning);
  void roll_back(const std::string& reason);
  [[noreturn]] void fail_training(const std::string& reason);
  void log_iteration();
  void begin_trace();
  void end_trace();
  void close_trace();
  void evaluate();
  /// Runs the evaluations that are due at the current iteration and that metrics.jsonl lacks.
  void run_missed_evaluations();
  enum class SaveReason : u8 { Start, Interval, Stop };
  /// Saves a checkpoint. At a start or stop, saves to checkpoint.save and blocks until the data is durable.
  void save(SaveReason reason);
  void check_before_save();
  bool should_exit();
  /// Writes the reason why the run stops early to the metrics and, if `is_logged`, to the log.
  void report_stop(const std::string& reason, bool is_logged);
  /// Returns the time this rank has spent computing, waiting for the pipeline, and communicating since start-up.
  RankTimings timings() const;
  /// Excludes the time since `since` from the throughput statistics.
  void exclude_from_timing(const RankTimings& since);
  void write_start();
  /// Writes an event to the metrics only; the caller logs it.
  void write_event(RunEvent::Kind kind, const std::string& text) {
    metrics_.write(RunEvent{.kind = kind, .iteration = progress_.iteration, .text = text});
  }
  /// Returns the signal received by any rank as of the last finished step, or 0. Identical on all ranks.
  int signal() const { return state_.stop_request().signal; }
  bool is_first_rank() const { return session_.parallel.world.rank() == 0; }

  const Config& config_;
  Session& session_;
  const Log& log_;
  StepProgress watch_;
  std::vector<BatchSizeStep> batch_sizes_;
  // Lock of checkpoint.save. This and the next three members come first to detect immediately errors that would
  // otherwise end the run at its first save; the peak also because measuring it takes memory that the model needs
  // later.
  std::unique_ptr<FolderLock> lock_;
  TensorboardMetrics tensorboard_;
  TraceWindow trace_;
  DevicePeak peak_;
  StepLogger step_logger_;
  DataProvenance sources_;
  TrainingState state_;
  StatisticsCollector statistics_;
  TrainingProgress progress_;
  TrainingEnd end_;  // after progress_, which determines the number of remaining samples
  FileSystem files_;
  FaultInjection faults_;
  CheckpointSaver saver_;  // after the members that its background save uses
  Datasets datasets_;
  LrSchedule schedule_;
  std::unique_ptr<BatchStream> batches_;
  // Before metrics_, which may replace the metrics file of a different run and must only do so if this run can begin.
  Validation validation_;
  MetricsWriter metrics_;
  bool is_aborted_ = false;
  double step_minutes_ = kLongStep;  // of the last finished step, as agreed by all ranks

  std::optional<PendingStep> pending_;
};

}  // namespace mcpp
