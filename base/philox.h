// Counter-based random numbers: a value depends only on (key, counter), not on the caller or the order of calls.
// Weights and dropout are keyed by their identity, so that a run does not depend on its layout. Philox4x32-10: Salmon
// et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11.
#pragma once
#include <array>
#include <string_view>

#include "base/normal_quantile.h"
#include "base/types.h"

namespace mcpp {

using Philox4 = std::array<u32, 4>;

constexpr Philox4 philox4x32(u64 key, Philox4 counter) {
  u32 k0 = static_cast<u32>(key), k1 = static_cast<u32>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const u64 p0 = u64{0xD2511F53} * counter[0], p1 = u64{0xCD9E8D57} * counter[2];
    counter = {static_cast<u32>(p1 >> 32) ^ counter[1] ^ k0, static_cast<u32>(p1),
               static_cast<u32>(p0 >> 32) ^ counter[3] ^ k1, static_cast<u32>(p0)};
    k0 += 0x9E3779B9, k1 += 0xBB67AE85;
  }
  return counter;
}

/// Returns the key of one named stream of random numbers: FNV-1a over the name, mixed with the seed and index
/// (splitmix64).
constexpr u64 philox_key(u64 seed, std::string_view name, u64 index = 0) {
  auto mix = [](u64 x) {
    x += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
  };
  u64 hash = 0xCBF29CE484222325;
  for (char c : name) hash = (hash ^ static_cast<u8>(c)) * 0x100000001B3;
  return mix(mix(seed ^ mix(hash)) + index);
}

/// Maps 32 random bits to the midpoint of one of 2^32 equal intervals of (0, 1); never returns 0 or 1.
constexpr double uniform_open(u32 bits) {
  return (static_cast<double>(bits) + 0.5) * 0x1p-32;
}

/// Returns element `index` of the standard normal stream with this key.
inline double philox_normal(u64 key, u64 index) {
  const u64 block = index / 4;
  const Philox4 bits = philox4x32(key, {static_cast<u32>(block), static_cast<u32>(block >> 32), 0, 0});
  return normal_quantile(uniform_open(bits[index % 4]));
}

}  // namespace mcpp
