// Access to Philox words in kernels.
#pragma once
#include "base/philox.h"

namespace mcpp {

/// Returns word `index` of four. words[index] with a runtime index would move them to local memory.
__device__ __forceinline__ u32 word_of(const Philox4& words, i64 index) {
  const u32 even = index & 2 ? words[2] : words[0], odd = index & 2 ? words[3] : words[1];
  return index & 1 ? odd : even;
}

}  // namespace mcpp
