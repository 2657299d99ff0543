// Ranges of rows that ranks send to each other.
#pragma once
#include <span>
#include <vector>

#include "comm/communicator.h"

namespace mcpp {

/// Returns consecutive ranges of these sizes, starting at 0.
std::vector<Part> consecutive_parts(std::span<const i64> sizes);
/// Returns the end of consecutive ranges, of which there is at least one.
inline i64 end_of(std::span<const Part> parts) {
  return parts.back().first + parts.back().count;
}
/// Returns the ranges of elements in ranges of rows with `width` elements each.
std::vector<Part> elements_of(std::span<const Part> rows, i64 width);

}  // namespace mcpp
