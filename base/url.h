// URLs of HTTP servers.
#pragma once
#include <string_view>

namespace mcpp {

/// Returns true if the text is a URL that begins with http:// or https:// and names a host.
bool is_http_url(std::string_view url);

}  // namespace mcpp
