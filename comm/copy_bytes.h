// Copies inside a machine, of nothing too, and of what is there already.
#pragma once
#include <cstring>

#include "base/types.h"

namespace mcpp {

inline void copy_bytes(void* to, const void* from, i64 bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace mcpp
