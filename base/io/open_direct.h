// Direct I/O, which bypasses the system's page cache.
#pragma once
#include "base/file.h"

namespace mcpp {

/// Opens a file with O_DIRECT and the given open(2) flags. Returns -1 if that is unsupported or the file system is not
/// known to be on a disk: the cache of a network file system keeps many transfers in flight, while direct I/O would
/// wait for each. Callers that keep many transfers in flight themselves, such as offload to a user-chosen disk, need
/// not use this function.
int open_direct(const Path& path, int flags);

}  // namespace mcpp
