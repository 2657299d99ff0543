// The numbers behind dropout, shared by all backends: see struct Dropout in ops.h for what they are keyed by.
#pragma once
#include <cmath>

#include "base/philox.h"
#include "tensor/ops/ops.h"

namespace mcpp {

/// An element is kept when its 32 random bits are not below this: p * 2^32, rounded up.
inline u32 dropout_threshold(float p) {
  return static_cast<u32>(std::ceil(static_cast<double>(p) * 0x1p32));
}

/// What kept values are multiplied by, so that the mean stays.
inline double dropout_scale(float p) {
  return 1 / (1 - static_cast<double>(p));
}

/// jitter's factors are lowest + step * (word >> 8), so that fp32 has the same ones as fp64: 24 bits.
inline double jitter_lowest(float p) {
  return 1 - static_cast<double>(p);
}
inline double jitter_step(float p) {
  return 2 * static_cast<double>(p) * 0x1p-24;
}

/// The counter of elements 4 * block .. 4 * block + 3 of the token at `position` of `sample`.
constexpr Philox4 dropout_counter(i64 sample, i64 position, i64 block) {
  const u64 bits = static_cast<u64>(sample);
  return {static_cast<u32>(bits), static_cast<u32>(bits >> 32), static_cast<u32>(position), static_cast<u32>(block)};
}

/// The key for the probabilities of query head `head` of those here. The probability at (query, key) is kept when word
/// key % 4 of Philox(this, dropout_counter(sample, query, key / 4)) is not below the threshold; query and key are
/// positions, those of AttentionOptions.
inline u64 attention_dropout_key(const Dropout& dropout, i64 head) {
  return philox_key(dropout.key, "attention", static_cast<u64>(dropout.first_column + head));
}

}  // namespace mcpp
