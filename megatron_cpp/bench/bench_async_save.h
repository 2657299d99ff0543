// Timing of saves beside the training: real steps on random tokens, with a save in flight and without.
#pragma once
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Seconds on the slowest rank.
struct AsyncSaveTimes {
  double step = 0;         ///< of a step while nothing is saved
  double step_beside = 0;  ///< of the steps that begin with a save in flight, on average
  /// All that the training thread waits for the first save, whose copy in host memory is new: in its start, for its
  /// copy, and when ranks meet for it after a step.
  double first_stall = 0;
  double stall = 0;  ///< the same for a later one
  double total = 0;  ///< of that one, from its start until the training knows that it is there
};

/// Trains `state` for some steps, with two saves on the way in `folder`, of which the last one stays. Called by all
/// ranks of the session.
AsyncSaveTimes bench_async_save(const Config& config, TrainingState& state, Session& session, const Path& folder);

}  // namespace mcpp
