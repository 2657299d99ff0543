// The training loop.
#pragma once
#include <chrono>
#include <memory>

#include "checkpoint/lock.h"
#include "megatron_cpp/checkpoint_saver.h"
#include "megatron_cpp/dataset_provider.h"
#include "megatron_cpp/metrics.h"
#include "megatron_cpp/signals.h"
#include "optimizer/lr_schedule.h"

namespace mcpp {

class Trainer {
 public:
  /// Builds everything that `config` names and resumes from the newest checkpoint, if there is one. Called by all
  /// ranks, which then do everything together; rank 0 logs.
  Trainer(const Config& config, Session& session, const SignalWatch& signals, const Log& log);

  /// Trains to the end, or until a signal, exit_interval or exit_duration_in_mins says to stop. Saves, evaluates and
  /// logs on the way. Returns Done, or Preempted after a signal.
  ExitCode train();

 private:
  void train_step();
  void note(const StepOutcome& outcome, double learning_rate, i64 batch_size);
  void log_iteration();
  void evaluate(const char* split, Dataset* dataset);
  /// What is due after a step; at the end, whatever is not saved.
  void save(bool is_last);
  bool should_exit();
  bool is_time_over();
  int agree_on_signal();
  /// By this rank since train() began.
  RankSeconds spent() const;
  RankStats rank_stats() const;
  void note_ranks();
  bool is_first_rank() const { return session_.parallel.world.rank() == 0; }

  const Config& config_;
  Session& session_;
  const SignalWatch& signals_;
  const Log& log_;
  std::vector<BatchSizeStep> batch_sizes_;
  i64 train_iters_;
  // Of checkpoint.save; first, because it finds at once what would end the run at its first save.
  std::unique_ptr<FolderLock> lock_;
  TrainingState state_;
  TrainingProgress progress_;
  FileSystem files_;
  CheckpointSaver saver_;
  Datasets datasets_;
  LrSchedule schedule_;
  std::unique_ptr<BatchStream> batches_;
  MetricsWriter metrics_;
  int signal_ = 0;  // that any rank received
  double peak_tflops_;
  std::chrono::steady_clock::time_point start_;

  // Since the last line of the log.
  IterationStats window_;
  double window_loss_ = 0;
  i64 window_losses_ = 0;  // steps in it: those not skipped
  i64 window_iterations_ = 0, window_samples_ = 0;
  RankSeconds window_begin_;
  bool ranks_are_shown_ = false;

  i64 consecutive_skips_ = 0;
};

}  // namespace mcpp
