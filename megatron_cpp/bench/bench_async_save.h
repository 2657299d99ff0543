// Benchmark of asynchronous saves: training steps on random tokens with and without a save in flight.
#pragma once
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Seconds on the slowest rank.
struct AsyncSaveTimes {
  double step = 0;            ///< per step without a save
  double step_with_save = 0;  ///< mean over the steps that start with a save in flight
  /// Total time that the training thread is blocked by the first save, which allocates its copy in host memory:
  /// starting it, copying, and synchronizing ranks after a step.
  double first_stall = 0;
  double stall = 0;  ///< same for a later save
  double total = 0;  ///< duration of that save until the training thread knows that it has finished
};

/// Trains `state` for some steps with two saves into `folder`, the last of which is kept. Collective over the session's
/// ranks.
AsyncSaveTimes bench_async_save(const Config& config, TrainingState& state, Session& session, const Path& folder);

}  // namespace mcpp
