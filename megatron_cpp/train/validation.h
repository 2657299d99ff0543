// The evaluations of a training: of what is held out, of the test set at the end, and texts that the model makes then.
#pragma once
#include <string>

#include "data/dataset/datasets.h"
#include "megatron_cpp/monitor/metrics/metrics.h"
#include "megatron_cpp/monitor/metrics/tensorboard_metrics.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/train/step_progress.h"
#include "megatron_cpp/train/text_sample.h"

namespace mcpp {

/// Each is told in the log, in the metrics and to TensorBoard, unless a signal stops it: then what matters is to save
/// in time, and the next start makes up for it. Called by all ranks alike.
class Validation {
 public:
  /// `watch` is that of `state`. All outlive this.
  Validation(StoredRef<Config> config, StoredRef<Datasets> datasets, Session& session, TrainingState& state,
             StepProgress& watch, const SpecialTokens& special_tokens, MetricsWriter& metrics,
             TensorboardMetrics& tensorboard, StoredRef<Log> log);

  /// Of each set that is held out, and after that a sample of text; with `only_owed` of those sets that metrics.jsonl
  /// lacks, because a run before this one ended just then.
  void of_sets(const TrainingProgress& progress, bool only_owed);
  /// Of the test set, if there is one that metrics.jsonl lacks.
  void of_test(const TrainingProgress& progress);

 private:
  /// The first `samples` of a dataset. `curve`: "validation", "validation-<set>" or "test".
  void evaluate(const std::string& curve, const Dataset& dataset, i64 samples, const TrainingProgress& progress);
  bool is_owed(const std::string& curve, i64 iteration);
  void sample_text(i64 iteration);
  bool is_stopped() const { return state_.stop_request().signal != 0; }

  const Config& config_;
  const Datasets& datasets_;
  Session& session_;
  TrainingState& state_;
  StepProgress& watch_;
  MetricsWriter& metrics_;
  TensorboardMetrics& tensorboard_;
  const Log& log_;
  TextSampler sampler_;
};

}  // namespace mcpp
