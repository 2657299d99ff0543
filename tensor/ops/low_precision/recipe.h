// Recipes of low-precision GEMMs: which elements of an operand share a scale. Names are the same as in Megatron Core.
#pragma once
#include <array>
#include <compare>
#include <string_view>

#include "tensor/gemm_recipe.h"
#include "tensor/ops/low_precision/fp8.h"
#include "tensor/ops/low_precision/nvfp4.h"

namespace mcpp {

template <>
struct EnumNames<Fp8Format> {
  static constexpr std::array<std::string_view, 2> value{"e4m3", "e5m2"};
};

/// Returns the number of elements along the contraction that share a scale; 0 if a scale applies to the full tensor.
constexpr i64 block_size(GemmRecipe recipe) {
  switch (recipe) {
    case GemmRecipe::Blockwise:
      return 128;
    case GemmRecipe::Mxfp8:
      return 32;
    case GemmRecipe::Nvfp4:
      return kNvfp4Block;
    default:
      return 0;
  }
}
constexpr bool has_blocks(GemmRecipe recipe) {
  return block_size(recipe) > 0;
}

/// Returns the divisor of all sizes of a GEMM on GPUs. cuBLASLt requires rows of codes of a multiple of 16 bytes, for
/// all matrices and their transposes; blocks of `mxfp8` are complete.
constexpr i64 gpu_size_multiple(GemmRecipe recipe) {
  if (recipe == GemmRecipe::Bf16) return 1;
  return recipe == GemmRecipe::Mxfp8 || recipe == GemmRecipe::Nvfp4 ? 32 : 16;
}

/// Axis of a matrix over which a GEMM sums.
enum class Contraction : u8 { Rows, Columns };

/// Returns the blocks of an activation or gradient: vectors along the contraction. Empty for a recipe without blocks.
constexpr BlockShape activation_blocks(GemmRecipe recipe, Contraction axis) {
  const i64 size = block_size(recipe);
  if (size == 0) return {};
  return axis == Contraction::Rows ? BlockShape{size, 1} : BlockShape{1, size};
}
/// Returns the blocks of a weight: squares with `blockwise` (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024) and
/// `nvfp4`, which are therefore the same in forward and backward; vectors along the contraction with `mxfp8` (Open
/// Compute Project, "Microscaling Formats (MX)", 2023).
constexpr BlockShape weight_blocks(GemmRecipe recipe, Contraction axis) {
  const i64 size = block_size(recipe);
  if (recipe == GemmRecipe::Blockwise || recipe == GemmRecipe::Nvfp4) return {size, size};
  return activation_blocks(recipe, axis);
}

/// Recipes of the passes of a linear layer.
struct PassRecipes {
  GemmRecipe forward = GemmRecipe::Tensorwise;  ///< y = x W^T
  GemmRecipe dgrad = GemmRecipe::Tensorwise;    ///< dx = dy W
  GemmRecipe wgrad = GemmRecipe::Tensorwise;    ///< dW = dy^T x
  Fp8Format gradients = Fp8Format::E4M3;        ///< format of dy in fp8; x and W always use E4M3

  /// Returns the same recipe for all passes.
  static constexpr PassRecipes of(GemmRecipe recipe, Fp8Format gradients = Fp8Format::E4M3) {
    return {recipe, recipe, recipe, gradients};
  }
  bool uses(GemmRecipe recipe) const { return forward == recipe || dgrad == recipe || wgrad == recipe; }
  /// Returns true if a pass needs the current largest magnitudes of full tensors.
  bool needs_amax() const { return uses(GemmRecipe::Tensorwise) || uses(GemmRecipe::Nvfp4); }
  /// Returns true if no pass rounds its operands.
  bool is_bf16() const { return *this == of(GemmRecipe::Bf16, gradients); }
  auto operator<=>(const PassRecipes&) const = default;
};

/// Returns true if forward and the gradient of inputs round the weight to the same values, with scales that messages of
/// weights support (fp8_weights.h).
constexpr bool rounds_weights_once(const PassRecipes& passes) {
  const bool is_supported = passes.forward == GemmRecipe::Tensorwise || passes.forward == GemmRecipe::Blockwise;
  return is_supported && passes.dgrad == passes.forward;
}

}  // namespace mcpp
