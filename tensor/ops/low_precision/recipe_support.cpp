#include "tensor/ops/low_precision/recipe_support.h"

#include "tensor/on_device.h"

namespace mcpp {

template <>
std::string RecipeSupport<DeviceType::Cpu>::emulation_reason(const Device&, GemmRecipe) {
  return "CPUs have no GEMMs in low precision";
}

std::string ops::recipe_emulation_reason(const Device& device, GemmRecipe recipe) {
  return on_device(device.type(), [&]<DeviceType D>() { return RecipeSupport<D>::emulation_reason(device, recipe); });
}

}  // namespace mcpp
