#include "base/fields.h"

#include "base/strings.h"

namespace mcpp {

std::string Constraint::describe() const {
  std::string text;
  if (std::isfinite(min)) text = str(min_is_excluded ? "greater than " : "at least ", min);
  if (std::isfinite(max)) text += str(text.empty() ? "" : " and ", max_is_excluded ? "below " : "at most ", max);
  return text;
}

}  // namespace mcpp
