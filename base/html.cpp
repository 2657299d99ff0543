#include "base/html.h"

namespace mcpp {

std::string escape_html(std::string_view text) {
  std::string html;
  for (const char c : text) html += c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
  return html;
}

}  // namespace mcpp
