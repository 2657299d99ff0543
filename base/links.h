// Paths that lead nowhere.
#pragma once
#include "base/file.h"

namespace mcpp {

/// BadInput, with the system's reason and where a link leads, unless `path` leads to something.
void check_leads_somewhere(const Path& path);

}  // namespace mcpp
