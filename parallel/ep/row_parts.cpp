#include "parallel/ep/row_parts.h"

namespace mcpp {

std::vector<Part> consecutive_parts(std::span<const i64> sizes) {
  std::vector<Part> parts;
  for (const i64 size : sizes) parts.push_back({parts.empty() ? 0 : end_of(parts), size});
  return parts;
}

std::vector<Part> elements_of(std::span<const Part> rows, i64 width) {
  std::vector<Part> elements;
  for (const Part& part : rows) elements.push_back({part.first * width, part.count * width});
  return elements;
}

}  // namespace mcpp
