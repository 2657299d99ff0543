// How much memory a tensor takes, padding included.
#pragma once
#include <algorithm>
#include <bit>

#include "base/rounding.h"

namespace mcpp {

/// What a buffer of so many bytes takes of a device: sizes are rounded so that buffers of nearly equal size share an
/// entry of its pool, to 64 bytes, and to 1/16 of the size above.
inline i64 pooled_size(i64 bytes) {
  const u64 above = std::bit_ceil(static_cast<u64>(bytes) + 1);
  return round_up(bytes, std::max<i64>(64, static_cast<i64>(above / 32)));
}

}  // namespace mcpp
