// Check for broken symbolic links.
#pragma once
#include "base/file.h"

namespace mcpp {

/// Throws BadInput, with the system's reason and the target of a link, unless `path` resolves to an existing entry.
void check_path_exists(const Path& path);

}  // namespace mcpp
