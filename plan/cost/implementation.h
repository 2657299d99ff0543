// Training programs whose steps can be predicted.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "parallel/layout.h"
#include "plan/cost/workload.h"

namespace mcpp {

enum class Implementation : u8 { MegatronCpp, MegatronCore };

template <>
struct EnumNames<Implementation> {
  static constexpr std::array<std::string_view, 2> value{"megatron_cpp", "megatron_core"};
};

/// Returns the kernel traits of a program. Those of Megatron Core are validated by published runs of 2026 with
/// Transformer Engine, in which data-parallel communication does not overlap (docs/planning.md).
KernelTraits kernel_traits(Implementation implementation);

/// Returns why a step of this workload, or of this layout, cannot be predicted for a program: settings that it does not
/// have, or that its traits do not cover, as "key: reason".
std::vector<std::string> unpredictable_settings(Implementation implementation, const Workload& work);
std::vector<std::string> unpredictable_settings(Implementation implementation, const Layout& layout);

}  // namespace mcpp
