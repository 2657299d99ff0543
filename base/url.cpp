#include "base/url.h"

namespace mcpp {

bool is_http_url(std::string_view url) {
  for (const std::string_view scheme : {"http://", "https://"})
    if (url.starts_with(scheme) && url.size() > scheme.size() && url[scheme.size()] != '/' &&
        url.find_first_of(" \t\n") == std::string_view::npos)
      return true;
  return false;
}

}  // namespace mcpp
