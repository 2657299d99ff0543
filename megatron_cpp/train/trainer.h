// Training loop.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/directory/lock.h"
#include "megatron_cpp/monitor/trace.h"
#include "megatron_cpp/monitor/training_logger.h"
#include "megatron_cpp/resume/checkpoint_saver.h"
#include "megatron_cpp/resume/training_schedule.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/step/step_replay.h"
#include "megatron_cpp/train/evaluator.h"
#include "megatron_cpp/train/fault_injection.h"
#include "megatron_cpp/train/huggingface_exports.h"
#include "megatron_cpp/train/signals.h"
#include "megatron_cpp/train/spike_causes.h"

namespace mcpp {

/// Parts of a training run. Each part may refer to the parts above it.
struct TrainerParts {
  std::unique_ptr<TrainingLogger> logger;
  std::unique_ptr<TraceWindow> trace;
  DataProvenance sources;
  std::unique_ptr<TrainingState> state;
  TrainingProgress progress;  ///< progress at the start of the run
  TrainingEnd end;
  std::unique_ptr<CheckpointSaver> saver;
  std::unique_ptr<HuggingfaceExports> exports;  ///< null if nothing is exported, and on ranks other than 0
  std::unique_ptr<Datasets> datasets;
  std::optional<TrainingSchedule> schedule;
  std::unique_ptr<StepProgress> step_progress;  ///< observer of the state
  std::unique_ptr<Evaluator> evaluator;
  std::unique_ptr<BatchStream> batches;
};

/// Trains until the end of the run or stage, a signal, exit_interval or exit_duration_in_mins. All member functions are
/// collective.
class Trainer {
 public:
  Trainer(const RunContext& run, TrainerParts parts);

  /// Trains with saves, evaluations and logging. First runs evaluations that the previous run missed because it stopped
  /// before them. Returns Done, Preempted after a signal, or PeerLost if training.straggler_policy stopped the run.
  ExitCode train();
  /// Returns true if the next stage may follow: the last iteration of the stage is finished, and exit_interval or
  /// exit_duration_in_mins did not stop the run there.
  bool has_completed_stage() const { return progress_.iteration >= parts_.end.iterations && !should_stop_; }

 private:
  /// Queued step whose outcome the host has not waited for.
  struct PendingStep {
    double learning_rate;
    double weight_decay;
    i64 batch_size;
    RankTimings timings;                   ///< timings of the rank when the step was queued
    std::map<std::string, double> timers;  ///< seconds of the queued work, by name
    StepStatistics statistics;             ///< statistics of the gradient
    std::vector<MicroBatch> batches = {};  ///< batches of the step, if it may be repeated (training.rerun_spikes)
  };

  /// Logs the start of training and of its stage.
  void log_start();
  /// Logs that no iterations are left, unless another stage follows.
  void log_nothing_left() const;
  /// Logs the end of the run, or of its last iteration in this process.
  void log_end(bool is_done);
  bool is_last_stage() const { return !run_.config.stage || run_.config.stage->is_last(); }
  i64 total_iterations() const { return run_.config.run_iterations(parts_.end); }
  void run_iterations();
  /// Queues a step and then waits for the outcome of the previous one.
  void train_step();
  /// Reads the samples of the next iteration without training on them.
  void skip_iteration();
  std::vector<MicroBatch> next_batches();
  /// Waits for the outcome of the pending step, if any, and handles it. Returns true if this replaced the weights of
  /// the model (rollback) or the gradients (rerun_step()).
  bool finish_step();
  bool must_finish_step() const;
  /// Duration of a long step, in minutes. After a long step the host waits for the outcome immediately, at negligible
  /// cost, so that a signal on another node takes effect one step earlier.
  static constexpr double kLongStep = 0.1;
  /// Returns the number of queued steps since iteration 0; progress_ counts finished steps only.
  i64 iteration() const { return progress_.iteration + (pending_ ? 1 : 0); }
  bool is_due(i64 interval) const { return interval > 0 && iteration() % interval == 0; }
  void backward(i64 iteration, const std::vector<MicroBatch>& batches);
  bool should_compare_executions(i64 iteration) const;
  /// Executes the passes of a step at least twice. Throws PeerLost, on all ranks, if a rank cannot be trusted.
  void compare_executions(i64 iteration, const std::vector<MicroBatch>& batches);
  /// Repeats a step that was not applied and logs whether a fault of the hardware caused it. Throws like
  /// compare_executions().
  void rerun_step(const StepOutcome& outcome, const PendingStep& step);
  [[noreturn]] void fail_on_faulty_ranks(i64 iteration, const std::vector<FaultyRank>& ranks);
  void log_step(const StepOutcome& outcome, PendingStep& step);
  /// Returns true if a log line or a point of a curve is written for the iteration.
  bool should_log(i64 iteration) const;
  bool is_log_iteration(i64 iteration) const {
    return iteration % run_.config.logging.log_interval == 0 || iteration == 1 || iteration == parts_.end.iterations;
  }
  bool apply_step_policy(const StepOutcome& outcome, i64 batch_size);
  void count_skip(const std::string& warning);
  /// Logs the layers and the samples that probably caused a bad step, or adds a good step to the usual norms.
  void attribute_step(const StepOutcome& outcome);
  void roll_back(const std::string& reason);
  [[noreturn]] void fail_training(const std::string& reason);
  void log_line();
  void begin_trace();
  void end_trace();
  void close_trace();
  void evaluate();
  /// Runs the evaluations that are due at the current iteration and that have no result yet.
  void run_missed_evaluations();
  enum class SaveReason : u8 { Start, Interval, Stop };
  /// Saves a checkpoint. At a start or stop, saves to checkpoint.save and blocks until the data is durable.
  void save(SaveReason reason);
  void check_before_save();
  bool should_exit();
  /// Logs that the run stops because of this rank, with its host. Collective.
  void stop_for_slow_rank(int rank);
  /// Logs the reason why the run stops early.
  void log_stop(const std::string& reason, RunEvent::Console console);
  void log_event(RunEvent::Kind kind, const std::string& text, RunEvent::Console console = RunEvent::Console::Info);
  /// Returns the time this rank has spent computing, waiting for the pipeline, and communicating since start-up.
  RankTimings timings() const { return rank_timings(state_, run_.session.parallel); }
  /// Excludes the time since `since` from the throughput statistics.
  void exclude_from_timing(const RankTimings& since) { run_.logger.exclude_from_timing(timings() - since); }
  /// Returns the signal received by any rank as of the last finished step, or 0. Identical on all ranks.
  int signal() const { return state_.stop_request().signal; }

  const RunContext run_;
  TrainerParts parts_;
  // References to members of parts_.
  TrainingState& state_;
  CheckpointSaver& saver_;
  TraceWindow& trace_;
  TrainingProgress& progress_;

  const std::vector<BatchSizeStep> batch_sizes_;
  FaultInjection faults_;
  StatisticsCollector statistics_;
  std::optional<LayerNormHistory> layer_norms_;  // with training.attribute_spikes
  std::optional<PendingStep> pending_;
  bool is_aborted_ = false;
  bool should_stop_ = false;  // exit_interval, exit_duration_in_mins or straggler_policy
  bool stops_for_slow_rank_ = false;
  double step_minutes_ = kLongStep;  // duration of the last finished step in minutes, as agreed by all ranks
};

struct StartedTraining {
  std::unique_ptr<Trainer> trainer;  ///< null if the checkpoint belongs to a different stage
  i64 iteration = 0;                 ///< iteration of the checkpoint; 0 for a new run
};

/// Builds all parts of a run from `config` and resumes from the newest checkpoint, if there is one. Rank 0 logs.
/// `predicted` is the planner's prediction of a step, to be compared with the measured steps, if requested. `lock`
/// is the lock of checkpoint.save, on the rank that holds it. If `is_continued`, the stage before the stage of `config`
/// has just ended in this process. References must outlive the trainer. Collective.
StartedTraining make_trainer(const Config& config, Session& session, const SignalWatch& signals, const Log& log,
                             const std::optional<PredictedStep>& predicted, const FolderLock* lock, bool is_continued);

}  // namespace mcpp
