// Names of the recipes of low-precision GEMMs, the same as in Megatron Core (tensor/ops/low_precision/recipe.h
// implements them).
#pragma once
#include <array>
#include <string_view>

#include "base/fields.h"
#include "base/types.h"

namespace mcpp {

/// Rounding of the two operands of a GEMM. Bf16: none.
enum class GemmRecipe : u8 { Bf16, Tensorwise, Delayed, Blockwise, Mxfp8, Nvfp4 };

template <>
struct EnumNames<GemmRecipe> {
  static constexpr std::array<std::string_view, 6> value{"bf16",      "tensorwise", "delayed",
                                                         "blockwise", "mxfp8",      "nvfp4"};
};

}  // namespace mcpp
