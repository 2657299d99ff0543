// Allocation size of tensors, including padding.
#pragma once
#include <algorithm>
#include <bit>

#include "base/integer_math.h"

namespace mcpp {

/// Returns the bytes that a buffer of `bytes` occupies on a device. Sizes are rounded up to 64 bytes and to 1/32 of the
/// next power of two, so that buffers of nearly equal size share a pool entry.
inline i64 padded_alloc_size(i64 bytes) {
  const u64 above = std::bit_ceil(static_cast<u64>(bytes) + 1);
  return round_up(bytes, std::max<i64>(64, static_cast<i64>(above / 32)));
}

}  // namespace mcpp
