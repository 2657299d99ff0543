// Settings of delayed scaling, the fp8 recipe `delayed` (amax_history.h).
#pragma once
#include <array>
#include <compare>
#include <string_view>

#include "base/fields.h"
#include "base/types.h"

namespace mcpp {

/// Value of a history that determines the scale.
enum class AmaxComputeAlgo : u8 { Max, MostRecent };
template <>
struct EnumNames<AmaxComputeAlgo> {
  static constexpr std::array<std::string_view, 2> value{"max", "most_recent"};
};

/// Settings of delayed scaling. Defaults are the same as in Transformer Engine.
struct DelayedScaling {
  i64 amax_history_len = 1024;  ///< steps
  AmaxComputeAlgo amax_compute_algo = AmaxComputeAlgo::Max;
  i64 margin = 0;  ///< the scale is divided by 2^margin
  auto operator<=>(const DelayedScaling&) const = default;
};

}  // namespace mcpp
