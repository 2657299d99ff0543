// What a plan is to make least.
#pragma once
#include <array>

#include "base/fields.h"

namespace mcpp {

/// Of the layouts of one world `Memory` takes the one whose ranks need least, and all others the fastest. Of several
/// worlds: the one that trains fastest, whose ranks need least, which takes fewest device hours for as many tokens, or
/// the smallest one that is in time.
enum class Objective : u8 { Time, Memory, DeviceHours, Deadline };

template <>
struct EnumNames<Objective> {
  static constexpr std::array<std::string_view, 4> value{"time", "memory", "device_hours", "deadline"};
};

}  // namespace mcpp
