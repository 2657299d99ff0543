// Evaluations of a training run on the validation and test sets, and text samples.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "data/dataset/datasets.h"
#include "data/tokenizer/tokenizer.h"
#include "megatron_cpp/inference/evaluation/tasks.h"
#include "megatron_cpp/monitor/training_logger.h"
#include "megatron_cpp/resume/checkpointing.h"
#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/step/training_state.h"
#include "megatron_cpp/train/signals.h"

namespace mcpp {

/// Runs the evaluations of a training run and logs them. A signal cancels the evaluation in progress so that the run
/// can save in time; the next start repeats it. All member functions are collective.
class Evaluator {
 public:
  /// `progress` must be the observer of `state`. Reads the tasks of training.eval_tasks, and the tokenizer if there is
  /// a prompt for text samples, which begin and end as `special_tokens` state.
  Evaluator(const RunContext& run, StoredRef<Datasets> datasets, TrainingState& state, StepProgress& progress,
            const SpecialTokens& special_tokens);

  /// Evaluates every validation set, scores the tasks, then generates a text sample, then evaluates the averaged
  /// weights if training.eval_ema is set. If `only_missing`, skips what was already evaluated at this iteration. While
  /// the averaged weights are evaluated, the state has them in place of its weights; no save may be copying either.
  void evaluate_validation_sets(const TrainingProgress& training, bool only_missing);
  /// Evaluates the test set in the same way, if there is one that was not yet evaluated at this iteration.
  void evaluate_test_set(const TrainingProgress& training);

 private:
  /// Evaluation that is due.
  struct DueEvaluation {
    std::string split;
    const Dataset& dataset;
    i64 samples;
  };
  /// Returns the evaluations of the validation sets. `prefix` precedes the name of each split.
  std::vector<DueEvaluation> validation_sets(const std::string& prefix, i64 iteration, bool only_missing);
  /// Runs the evaluations until a signal requests a stop.
  void evaluate_all(const std::vector<DueEvaluation>& list, const TrainingProgress& training);
  /// Runs the evaluations with the averaged weights.
  void evaluate_ema(const std::vector<DueEvaluation>& list, const TrainingProgress& training);
  /// Evaluates and logs the first samples of a dataset, which never change, so that evaluations can be compared.
  void evaluate(const DueEvaluation& due, const TrainingProgress& training);
  /// Returns the mean loss of the current weights over the samples, or std::nullopt if a signal requests any rank to
  /// stop. Uses the largest batch size of the run.
  std::optional<EvaluationOutcome> mean_loss(const std::string& split, const Dataset& dataset, i64 samples);
  bool needs_evaluation(const std::string& split, i64 iteration);
  bool is_stopped() const { return state_.stop_request().signal != 0; }
  /// Scores the tasks of training.eval_tasks and logs them.
  void score_tasks(const TrainingProgress& training);
  bool has_missing_tasks(i64 iteration);
  void log_sample(i64 iteration);
  /// Continues logging.sample_prompt with tokens sampled as `generate` does, with a fixed random seed. The text depends
  /// only on the weights, not on the layout, except where a random draw is within rounding error of the boundary
  /// between two tokens. Training does not depend on the text. Each token costs the forward pass of a full sample,
  /// since keys and values are not cached. Returns std::nullopt if a signal requests any rank to stop.
  std::optional<std::string> generate_sample() const;
  MicroBatch padded_sample(std::span<const i32> ids) const;

  RunContext run_;
  const Datasets& datasets_;
  TrainingState& state_;
  StepProgress& progress_;
  std::optional<Tokenizer> tokenizer_;  // set if there is a prompt
  std::vector<i32> prompt_, stop_tokens_;
  std::optional<TaskSuite> tasks_;
};

}  // namespace mcpp
