// Timing of saves and loads against plain writes and reads of the same bytes, in turn in the same run.
#pragma once
#include "megatron_cpp/bench/bench_async_save.h"
#include "megatron_cpp/config/config.h"
#include "megatron_cpp/setup/initialize.h"
#include "megatron_cpp/step/training_state.h"

namespace mcpp {

/// Seconds on the slowest rank.
struct CheckpointTimes {
  double plain_write = 0;  ///< of the ranks' bytes to a file each, flushed to the disk
  double save = 0;         ///< a whole checkpoint, while the ranks wait
  AsyncSaveTimes async;
  double plain_read = 0;   ///< of the plain files, which are not in memory
  double direct_read = 0;  ///< the same past the page cache, where the disk has that: what a load cannot be faster than
  double load = 0;         ///< finding, verifying and loading the checkpoint, which is not in memory
  double verify = 0;
};

/// One round. `folder` holds what is written, and is left empty but for itself. Called by all ranks of the session.
CheckpointTimes bench_checkpoint(const Config& config, TrainingState& state, Session& session, const Path& folder,
                                 const Log& log);

/// Bytes of one checkpoint, of all ranks.
i64 checkpoint_bytes(const TrainingState& state, Session& session);

}  // namespace mcpp
