// How much memory a tensor takes, padding included.
#pragma once
#include "base/rounding.h"

namespace mcpp {

/// What a buffer of so many bytes takes of a device: sizes are rounded so that buffers of nearly equal size share an
/// entry of its pool, to 64 bytes, and to 1/16 of the size above.
inline i64 pooled_size(i64 bytes) {
  i64 step = 64;
  while (step * 32 <= bytes) step *= 2;
  return round_up(bytes, step);
}

}  // namespace mcpp
