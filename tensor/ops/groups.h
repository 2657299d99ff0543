// Iteration over consecutive groups of rows.
#pragma once
#include <span>

#include "base/types.h"

namespace mcpp {

/// Calls f(g, first row, rows) for every group, including empty ones.
template <class F>
void for_each_group(std::span<const i64> rows, F&& f) {
  i64 first = 0;
  for (i64 g = 0; const i64 count : rows) {
    f(g++, first, count);
    first += count;
  }
}

}  // namespace mcpp
