// Evaluations of a training run on the validation and test sets, and text samples.
#pragma once
#include <string>

#include "data/dataset/datasets.h"
#include "megatron_cpp/monitor/metrics/metrics.h"
#include "megatron_cpp/monitor/metrics/tensorboard_metrics.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/train/step_progress.h"
#include "megatron_cpp/train/text_sample.h"

namespace mcpp {

/// Runs the evaluations of a training run and reports them to the log, metrics.jsonl and TensorBoard. A signal cancels
/// the evaluation in progress so that the run can save in time; the next start repeats it. All member functions are
/// collective.
class Validation {
 public:
  /// `watch` must be the observer of `state`.
  Validation(StoredRef<Config> config, StoredRef<Datasets> datasets, Session& session, TrainingState& state,
             StepProgress& watch, const SpecialTokens& special_tokens, MetricsWriter& metrics,
             TensorboardMetrics& tensorboard, StoredRef<Log> log);

  /// Evaluates every validation set, then prints a text sample. If `only_missing`, skips the sets that already have a
  /// result for this iteration in metrics.jsonl.
  void evaluate_validation_sets(const TrainingProgress& progress, bool only_missing);
  /// Evaluates the test set, if there is one without a result for this iteration in metrics.jsonl.
  void evaluate_test_set(const TrainingProgress& progress);

 private:
  /// Evaluates the first `samples` of a dataset. `curve` is "validation", "validation-<set>" or "test".
  void evaluate(const std::string& curve, const Dataset& dataset, i64 samples, const TrainingProgress& progress);
  bool needs_evaluation(const std::string& curve, i64 iteration);
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
