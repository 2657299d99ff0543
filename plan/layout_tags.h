// Layout tags: properties of layouts that a user may ask about.
#pragma once
#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "plan/cost/layout.h"

namespace mcpp {

/// Tag of a layout, such as "tp 8", "recompute full" or "weights twice". A search tags many layouts and prints few of
/// them, so the text is composed late. The views refer to constants.
struct LayoutTag {
  std::string_view name;
  std::string_view value;  ///< "" = the number
  i64 number = 0;

  auto operator<=>(const LayoutTag&) const = default;
  std::string text() const;
};

/// Returns the tags of a layout.
std::vector<LayoutTag> layout_tags(const Layout& layout, bool has_experts);

/// Natural order of tag texts: "tp 2" before "tp 16".
struct NaturalLess {
  bool operator()(const std::string& a, const std::string& b) const;
};

}  // namespace mcpp
