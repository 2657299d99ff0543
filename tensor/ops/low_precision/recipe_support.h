// Support of recipes by devices.
#pragma once
#include <string>

#include "tensor/ops/low_precision/recipe.h"

namespace mcpp {
namespace ops {

/// Returns the reason why the device emulates GEMMs of a recipe with blocks: it rounds operands, stores them in bf16,
/// and multiplies them in bf16. Returns "" if it multiplies codes.
std::string recipe_emulation_reason(const Device& device, GemmRecipe recipe);

}  // namespace ops

/// Backend implementations, as in Kernels.
template <DeviceType D>
struct RecipeSupport {
  static decltype(ops::recipe_emulation_reason) emulation_reason;
};

}  // namespace mcpp
