// Local files of a run whose checkpoints are in an object store.
#pragma once
#include "base/file.h"

namespace mcpp {

/// Returns the local folder of a run's lock, metrics, traces and files being written: `save`, the folder of its
/// checkpoints, or for an s3:// path the folder runs/<bucket>/<key> in the cache of the node. "" for "".
Path run_folder(const Path& save);

}  // namespace mcpp
