// Files that come with the program, such as configurations.
#pragma once
#include "base/file.h"

namespace mcpp {

/// `file` where it is there; else, for a relative name, the one that was installed with the program, in
/// share/megatron_cpp beside the program's bin/, if it has it; else `file`, which then is missing.
Path find_shipped(const Path& file);

}  // namespace mcpp
