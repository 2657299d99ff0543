// Source files that cmake/Embed.cmake embeds into the program.
#pragma once
#include <string_view>

namespace mcpp {

struct EmbeddedFile {
  std::string_view name;  ///< without folders
  std::string_view content;
};

}  // namespace mcpp
