// Name patterns with wildcards.
#pragma once
#include <string_view>

namespace mcpp {

/// Returns true if `pattern` matches all of `text`: * stands for any characters, also none and dots, and ? for one.
inline bool matches_glob(std::string_view text, std::string_view pattern) {
  std::size_t t = 0, p = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1, t = ++resume;  // the last * takes one more character
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

}  // namespace mcpp
