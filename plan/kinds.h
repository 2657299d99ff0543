// The kinds of layouts that a user may ask about.
#pragma once
#include <compare>
#include <string>
#include <string_view>
#include <vector>

#include "plan/cost/layout.h"

namespace mcpp {

/// "tp 8", "recompute full", "weights twice": a search counts many layouts to their kinds, and tells few of these, so
/// that the words are joined late. Views are of constants.
struct LayoutKind {
  std::string_view name;
  std::string_view value;  ///< "" = the number
  i64 number = 0;

  auto operator<=>(const LayoutKind&) const = default;
  std::string text() const;
};

/// Those of which a layout is one.
std::vector<LayoutKind> kinds_of(const Layout& layout, bool has_experts);

/// Of texts of kinds: "tp 2" before "tp 16".
struct InNumbers {
  bool operator()(const std::string& a, const std::string& b) const;
};

}  // namespace mcpp
