// Objective that a plan minimizes.
#pragma once
#include <array>

#include "base/fields.h"

namespace mcpp {

/// Objective of a search. Among the layouts of one world size, `Memory` selects the one whose ranks need least memory,
/// and all others the fastest. Among several world sizes, they select the fastest, the one whose ranks need least
/// memory, the one with fewest device hours for the same tokens, or the smallest one that meets the deadline.
enum class Objective : u8 { Time, Memory, DeviceHours, Deadline };

template <>
struct EnumNames<Objective> {
  static constexpr std::array<std::string_view, 4> value{"time", "memory", "device_hours", "deadline"};
};

}  // namespace mcpp
