#include "base/text/nearest_values.h"

#include "base/strings.h"

namespace mcpp {

std::vector<i64> nearest_divisors(i64 n, i64 value) {
  i64 below = value, above = value;
  while (below > 1 && n % below != 0) --below;
  while (above <= n && n % above != 0) ++above;
  std::vector<i64> found;
  if (below >= 1 && n % below == 0) found.push_back(below);
  if (above <= n && above != below) found.push_back(above);
  return found;
}

std::vector<i64> nearest_multiples(i64 step, i64 value) {
  const i64 below = value / step * step;
  if (below == value) return {value};
  if (below == 0) return {step};
  return {below, below + step};
}

std::string join_alternatives(const std::vector<i64>& values) {
  std::string text;
  for (const i64 value : values) text += str(text.empty() ? "" : " or ", value);
  return text;
}

}  // namespace mcpp
