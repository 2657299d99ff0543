// The training loop.
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
#include "megatron_cpp/train/step_progress.h"
#include "megatron_cpp/train/step_records.h"
#include "megatron_cpp/train/validation.h"
#include "optimizer/lr_schedule.h"

namespace mcpp {

class Trainer {
 public:
  /// Builds everything that `config` names and resumes from the newest checkpoint, if there is one. Called by all
  /// ranks, which then do everything together; rank 0 logs.
  /// `predicted`: of a step of the configuration, if it is to be held against the steps as they are.
  Trainer(StoredRef<Config> config, Session& session, const SignalWatch& signals, StoredRef<Log> log,
          const std::optional<PredictedStep>& predicted);

  /// Trains to the end, or until a signal, exit_interval or exit_duration_in_mins says to stop. Saves, evaluates and
  /// logs on the way. Returns Done, or Preempted after a signal. An evaluation that a run before this one owes, because
  /// it ended just then, comes first.
  ExitCode train();

 private:
  /// The step whose outcome the host has not waited for.
  struct PendingStep {
    double learning_rate;
    double weight_decay;
    i64 batch_size;
    RankTimings spent;                     ///< when it was queued
    std::map<std::string, double> timers;  ///< of what it queued
    StepStatistics statistics;             ///< of its gradient
  };

  void run_iterations();
  /// Queues a step; meanwhile the outcome of the one before comes in.
  void train_step();
  std::vector<MicroBatch> next_batches();
  /// Waits for the outcome of the step that was queued last, if that is still to be done, and does what follows from
  /// it. Whether that put other weights into the model.
  bool finish_step();
  bool must_finish_step() const;
  /// Minutes; after such steps the host waits for the outcome at once, which then costs nothing, so that a signal on
  /// another machine need not wait for one more.
  static constexpr double kLongStep = 0.1;
  /// Steps queued since iteration 0; progress_ is of those that are finished.
  i64 iteration() const { return progress_.iteration + (pending_ ? 1 : 0); }
  bool is_due(i64 interval) const { return interval > 0 && iteration() % interval == 0; }
  void backward(i64 iteration, const std::vector<MicroBatch>& batches);
  void record(const StepOutcome& outcome, PendingStep& step);
  /// Whether a line of the log, or a point of a curve, is written for the iteration.
  bool should_log(i64 iteration) const;
  bool ends_line(i64 iteration) const {
    return iteration % config_.logging.log_interval == 0 || iteration == 1 || iteration == end_.iterations;
  }
  bool follow_policy(const StepOutcome& outcome, i64 batch_size);
  void count_skip(const std::string& warning);
  void roll_back(const std::string& reason);
  [[noreturn]] void give_up(const std::string& reason);
  void log_iteration();
  void begin_trace();
  void end_trace();
  void close_trace();
  void evaluate();
  /// The evaluations that are due where the training stands and that metrics.jsonl does not have.
  void evaluate_what_is_owed();
  enum class SaveReason : u8 { Start, Interval, Stop };
  /// Saves what is due; at a start or stop in checkpoint.save, and returns when it is on the disk.
  void save(SaveReason reason);
  void check_before_save();
  bool should_exit();
  void say_that_it_stops(const std::string& reason);
  /// By this rank.
  RankTimings spent() const;
  /// What the rank did since then is not training.
  void exclude_from_timing(const RankTimings& since);
  void write_start();
  /// In the metrics; the log has it already, or gets it elsewhere.
  void write_event(RunEvent::Kind kind, const std::string& text) {
    metrics_.write(RunEvent{.kind = kind, .iteration = progress_.iteration, .text = text});
  }
  /// That any rank received, as all know by now, or 0.
  int signal() const { return state_.stop_request().signal; }
  bool is_first_rank() const { return session_.parallel.world.rank() == 0; }

  const Config& config_;
  Session& session_;
  const Log& log_;
  StepProgress watch_;
  std::vector<BatchSizeStep> batch_sizes_;
  // Of checkpoint.save; first, because it finds at once what would end the run at its first save.
  std::unique_ptr<FolderLock> lock_;
  TensorboardMetrics tensorboard_;  // likewise
  TraceWindow trace_;               // likewise
  DevicePeak peak_;                 // likewise, before the model: measuring it takes memory
  StepRecords records_;
  RunSources sources_;
  TrainingState state_;
  StatisticsCollector statistics_;
  TrainingProgress progress_;
  TrainingEnd end_;  // after the progress, which decides how many samples are left
  FileSystem files_;
  FaultInjection faults_;
  CheckpointSaver saver_;  // after what the thread of a save in flight uses
  Datasets datasets_;
  LrSchedule schedule_;
  std::unique_ptr<BatchStream> batches_;
  Validation validation_;  // before the metrics, whose file another run's must leave only for one that can begin
  MetricsWriter metrics_;
  bool is_aborted_ = false;
  double step_minutes_ = kLongStep;  // of the last step that is finished, as all ranks know by now

  std::optional<PendingStep> pending_;
};

}  // namespace mcpp
