// The loss of a text that is held out, while training.
#pragma once
#include <optional>
#include <string>

#include "megatron_cpp/setup/datasets/dataset_provider.h"
#include "megatron_cpp/step/training_state.h"
#include "megatron_cpp/train/step_progress.h"

namespace mcpp {

/// What an evaluation reads: always the same samples, so that evaluations can be compared with one another.
struct HeldOutSamples {
  std::string name;  ///< of the curve that the evaluation is a point of: "validation", "validation-<set>" or "test"
  const Dataset& dataset;
  i64 samples;  ///< the first ones; 1 or more
};

/// The loss under the weights as they are, over all samples, in batches of the largest size of the training; nothing
/// once a signal asks any rank to stop. Called by all ranks, which get the same. `watch` is that of `state`.
std::optional<EvaluationOutcome> evaluate_samples(const HeldOutSamples& text, const Config& config,
                                                  TrainingState& state, StepProgress& watch, Session& session);

}  // namespace mcpp
