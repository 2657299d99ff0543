// Files installed with the program, such as configurations.
#pragma once
#include "base/file.h"

namespace mcpp {

/// Returns `file` if it exists. Otherwise, for a relative name, returns the installed file in share/megatron_cpp next
/// to the program's bin/ if it exists. Otherwise returns `file`, which is then missing.
Path find_installed_file(const Path& file);

}  // namespace mcpp
