// Evaluations of a training run on the validation and test sets, and text samples.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset/datasets.h"
#include "data/tokenizer/tokenizer.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/monitor/metrics/metrics.h"
#include "megatron_cpp/monitor/metrics/tensorboard_metrics.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/resume/special_tokens.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/training_state.h"
#include "megatron_cpp/train/step_progress.h"

namespace mcpp {

// Evaluation of the model on a held-out dataset during training.

/// Held-out samples that an evaluation reads. They never change, so that evaluations can be compared.
struct HeldOutSamples {
  std::string name;  ///< curve to which the evaluation adds a point: "validation", "validation-<set>" or "test"
  const Dataset& dataset;
  i64 samples;  ///< number of samples, from the first on; at least 1
};

/// Returns the mean loss of the current weights over all samples, or std::nullopt if a signal requests any rank to
/// stop. Batches have the largest size of the training. `watch` must be the observer of `state`. Collective; the result
/// is identical on all ranks.
std::optional<EvaluationOutcome> evaluate_samples(const HeldOutSamples& text, const Config& config,
                                                  TrainingState& state, StepProgress& watch, Session& session);

// Text sample from the model in training, generated at each evaluation.

/// Continues logging.sample_prompt with tokens sampled as `generate` does, with a fixed random seed.
/// The text depends only on the weights, not on the layout, except where a random draw falls within rounding error
/// of two tokens. Training does not depend on it. Each token costs the forward pass of a full sample, since keys and
/// values are not cached.
class TextSampler {
 public:
  /// Reads the tokenizer if there is a prompt. Samples begin and end as `special_tokens` state.
  TextSampler(StoredRef<Config> config, const SpecialTokens& special_tokens, Session& session);

  bool is_on() const { return tokenizer_.has_value(); }
  /// Returns the continuation of the prompt, or std::nullopt if `signal`, this rank's stop signal, is nonzero on any
  /// rank. Collective; the result is identical on all ranks.
  std::optional<std::string> next(TrainingState& state, const std::function<int()>& signal) const;

 private:
  MicroBatch sample_of(std::span<const i32> ids) const;

  const Config& config_;
  Session& session_;
  std::optional<Tokenizer> tokenizer_;
  std::vector<i32> prompt_, stop_tokens_;
};

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
