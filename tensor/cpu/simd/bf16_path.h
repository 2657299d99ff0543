// How bf16 products are computed, by what the processor offers.
#pragma once
#include "base/types.h"

namespace mcpp::kernel {

enum class Bf16Path : u8 {
  Widen,  ///< converted to fp32, block by block: any CPU
  Dots,   ///< dot products of pairs: AVX512_BF16
  Amx,    ///< tiles of the matrix unit
};

/// Whether this CPU can take `path`, under the limit that is set.
bool can_take(Bf16Path path);
/// The fastest path that this CPU can take.
Bf16Path best_bf16_path();

}  // namespace mcpp::kernel
