// The points of a save between which a process may die: whatever the last one it reached, a sound checkpoint is left.
#pragma once
#include <functional>

#include "base/types.h"

namespace mcpp {

enum class SavePoint : u8 {
  BeforeFiles,  ///< every rank: the temporary directory is there; beside the training, nothing in host memory is copied
                ///< yet
  AfterFiles,   ///< every rank: its file is written and flushed
  BeforeManifest,  ///< rank 0: all files are
  BeforeRename,    ///< rank 0: so is the manifest
  BeforeLatest,    ///< rank 0: the checkpoint is there, `latest` names the one before
  BeforePrune,     ///< rank 0: older checkpoints are not removed yet
};

/// Called when a point is reached; may be empty. For tests that end the process there.
using SaveObserver = std::function<void(SavePoint)>;

inline void reach(SavePoint point, const SaveObserver& observer) {
  if (observer) observer(point);
}

}  // namespace mcpp
