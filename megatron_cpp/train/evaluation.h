// Evaluation of the model on a held-out dataset during training.
#pragma once
#include <optional>
#include <string>

#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/step/training_state.h"
#include "megatron_cpp/train/step_progress.h"

namespace mcpp {

/// Held-out samples that an evaluation reads. They never change, so that evaluations can be compared.
struct HeldOutSamples {
  std::string name;  ///< curve to which the evaluation adds a point: "validation", "validation-<set>" or "test"
  const Dataset& dataset;
  i64 samples;  ///< number of samples, from the first on; at least 1
};

/// Returns the mean loss of the current weights over all samples, or std::nullopt if a signal asks any rank to stop.
/// Batches have the largest size of the training. `watch` must be the observer of `state`. Collective; the result is
/// identical on all ranks.
std::optional<EvaluationOutcome> evaluate_samples(const HeldOutSamples& text, const Config& config,
                                                  TrainingState& state, StepProgress& watch, Session& session);

}  // namespace mcpp
