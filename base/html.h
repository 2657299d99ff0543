// Text in HTML and SVG.
#pragma once
#include <string>
#include <string_view>

namespace mcpp {

/// Returns `text` with & and < escaped, for the content of an element.
std::string escape_html(std::string_view text);

}  // namespace mcpp
