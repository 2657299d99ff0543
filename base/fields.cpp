#include "base/fields.h"

#include "base/number_format.h"
#include "base/strings.h"

namespace mcpp {
namespace {

/// Formats a limit, without an exponent if it is integral: 1000000, not 1e+06.
std::string limit_text(double limit) {
  return limit == std::trunc(limit) && std::abs(limit) < 1e16 ? fixed(limit, 0) : shortest(limit);
}

}  // namespace

std::string Constraint::describe() const {
  std::string text;
  if (std::isfinite(min)) text = str(min_is_excluded ? "greater than " : "at least ", limit_text(min));
  if (std::isfinite(max))
    text += str(text.empty() ? "" : " and ", max_is_excluded ? "below " : "at most ", limit_text(max));
  return text;
}

}  // namespace mcpp
