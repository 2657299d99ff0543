// Names of tensors and modules without their layer, for messages that apply to many layers.
#pragma once
#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "base/strings.h"

namespace mcpp {

/// Returns the name with "*" in place of each number between dots, so that all layers have the same.
inline std::string name_of_all_layers(std::string_view name) {
  std::vector<std::string> parts = split(name, '.');
  for (std::string& part : parts) {
    const bool is_number =
        !part.empty() && std::ranges::all_of(part, [](unsigned char c) { return std::isdigit(c) != 0; });
    if (is_number) part = "*";
  }
  return join(parts, ".");
}

/// Returns the patterns in quotes, separated by commas.
inline std::string quoted_patterns(const std::vector<std::string>& patterns) {
  return str("\"", join(patterns, "\", \""), "\"");
}

}  // namespace mcpp
