// Benchmark of saves and loads, alternating with plain writes and reads of the same bytes.
#pragma once
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

// Benchmark of asynchronous saves: training steps on random tokens with and without a save in flight.

/// Seconds on the slowest rank.
struct AsyncSaveTimes {
  double step = 0;            ///< time per step without a save
  double step_with_save = 0;  ///< mean over the steps that start with a save in flight
  /// Total time that the training thread is blocked by the first save, which allocates its copy in host memory:
  /// starting it, copying, and synchronizing ranks after a step.
  double first_stall = 0;
  double stall = 0;  ///< time that the training thread is blocked by a later save
  double total = 0;  ///< duration of the later save until the training thread detects its completion
};

/// Trains `state` for some steps with two saves into `folder`, the last of which is kept. Collective over the session's
/// ranks.
AsyncSaveTimes bench_async_save(const Config& config, TrainingState& state, Session& session, const Path& folder);

/// Seconds on the slowest rank.
struct CheckpointTimes {
  double plain_write = 0;  ///< write of each rank's bytes to its own file, flushed to disk
  double save = 0;         ///< synchronous save of a complete checkpoint
  AsyncSaveTimes async;
  double plain_read = 0;   ///< read of the plain files with a cold page cache
  double direct_read = 0;  ///< read that bypasses the page cache if supported: lower bound for a load
  double load = 0;         ///< finding, verifying and loading the checkpoint with a cold page cache
  double verify = 0;
};

/// Runs one round. Writes to `folder`, which is left empty. Collective over the session's ranks.
CheckpointTimes bench_checkpoint(const Config& config, TrainingState& state, Session& session, const Path& folder,
                                 const Log& log);

/// Returns the bytes of one checkpoint of all ranks.
i64 checkpoint_bytes(const TrainingState& state, Session& session);

}  // namespace mcpp
