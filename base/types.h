// Integer type aliases. Sizes, shapes and indices are signed 64-bit.
#pragma once
#include <cstddef>
#include <cstdint>

namespace mcpp {

using i8 = std::int8_t;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using i32 = std::int32_t;
using u32 = std::uint32_t;
using i64 = std::int64_t;
using u64 = std::uint64_t;

}  // namespace mcpp
