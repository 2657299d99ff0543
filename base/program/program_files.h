// Files that come with the program: embedded into it or installed next to it.
#pragma once
#include <string_view>

#include "base/file.h"

namespace mcpp {

struct EmbeddedFile {
  std::string_view name;  ///< file name without its folder
  std::string_view content;
};

/// Returns `file` if it exists. Otherwise, for a relative name, returns the installed file in share/megatron_cpp next
/// to the program's bin/ if it exists. Otherwise returns `file`, which is then missing.
Path find_installed_file(const Path& file);

}  // namespace mcpp
