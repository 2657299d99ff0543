// Random numbers of dropout, shared by all backends. struct Dropout in ops.h describes their keys.
#pragma once
#include <cmath>

#include "base/philox.h"
#include "tensor/ops/ops.h"

namespace mcpp {

/// Returns p * 2^32, rounded up: an element is kept if its 32 random bits are at least this value.
inline u32 dropout_threshold(float p) {
  return static_cast<u32>(std::ceil(static_cast<double>(p) * 0x1p32));
}

/// Returns 1 / (1 - p), the factor of elements that are kept.
inline double dropout_scale(float p) {
  return 1 / (1 - static_cast<double>(p));
}

/// Return the lowest jitter factor and the step between factors, which are lowest + step * (word >> 8). They have 24
/// random bits, so fp32 and fp64 get the same factors.
inline double jitter_lowest(float p) {
  return 1 - static_cast<double>(p);
}
inline double jitter_step(float p) {
  return 2 * static_cast<double>(p) * 0x1p-24;
}

/// Returns the Philox counter of elements [4 * block, 4 * block + 4) of the token at `position` of `sample`.
constexpr Philox4 dropout_counter(i64 sample, i64 position, i64 block) {
  const u64 bits = static_cast<u64>(sample);
  return {static_cast<u32>(bits), static_cast<u32>(bits >> 32), static_cast<u32>(position), static_cast<u32>(block)};
}

/// Returns the key of the probabilities of local query head `head`. The probability at (query, key) is kept if word key
/// % 4 of Philox(this, dropout_counter(sample, query, key / 4)) is not below the threshold; query and key are the
/// positions in AttentionOptions.
inline u64 attention_dropout_key(const Dropout& dropout, i64 head) {
  return philox_key(dropout.key, "attention", static_cast<u64>(dropout.first_column + head));
}

}  // namespace mcpp
