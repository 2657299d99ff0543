// Files past the system's page cache.
#pragma once
#include "base/file.h"

namespace mcpp {

/// Opens a file so, with other flags of open(2). -1 where that cannot be, and where the file system is not known to be
/// that of a disk: a network's cache keeps many transfers under way, and without it each would be waited for. Who has
/// many under way himself, as offload to a disk that the user names, need not ask.
int open_direct(const Path& path, int flags);

}  // namespace mcpp
