// Files of the sources that cmake/Embed.cmake puts into the program.
#pragma once
#include <string_view>

namespace mcpp {

struct EmbeddedFile {
  std::string_view name;  ///< without folders
  std::string_view content;
};

}  // namespace mcpp
