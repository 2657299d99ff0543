// Element types of tensors, and bfloat16.
#pragma once
#include <bit>
#include <string_view>
#include <type_traits>

#include "base/check.h"
#include "base/types.h"

namespace mcpp {

/// F64 exists for gradient checks against exact arithmetic, on the CPU only.
enum class DType : u8 { F32, BF16, F64, I32, I64 };

constexpr i64 size_of(DType t) {
  switch (t) {
    case DType::BF16:
      return 2;
    case DType::F32:
    case DType::I32:
      return 4;
    case DType::F64:
    case DType::I64:
      return 8;
  }
  return 0;
}

/// "fp32", "bf16", "fp64", "int32", "int64".
constexpr std::string_view name_of(DType t) {
  switch (t) {
    case DType::F32:
      return "fp32";
    case DType::BF16:
      return "bf16";
    case DType::F64:
      return "fp64";
    case DType::I32:
      return "int32";
    case DType::I64:
      return "int64";
  }
  return "";
}

/// The upper half of an IEEE single. Conversion from float rounds to nearest even and keeps NaN a NaN.
struct BFloat16 {
  u16 bits = 0;

  BFloat16() = default;
  constexpr explicit BFloat16(float value) : bits(round(std::bit_cast<u32>(value))) {}
  constexpr explicit operator float() const { return std::bit_cast<float>(static_cast<u32>(bits) << 16); }

 private:
  static constexpr u16 round(u32 x) {
    if ((x & 0x7FFFFFFF) > 0x7F800000) return static_cast<u16>((x >> 16) | 0x40);
    return static_cast<u16>((x + 0x7FFF + ((x >> 16) & 1)) >> 16);
  }
};

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::F32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::F64;
};
template <>
struct DTypeOf<BFloat16> {
  static constexpr DType value = DType::BF16;
};
template <>
struct DTypeOf<i32> {
  static constexpr DType value = DType::I32;
};
template <>
struct DTypeOf<i64> {
  static constexpr DType value = DType::I64;
};

/// Rounds once to T, and widens exactly.
template <class T>
constexpr T from_double(double x) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return BFloat16(static_cast<float>(x));
  else
    return static_cast<T>(x);
}
template <class T>
constexpr double to_double(T x) {
  if constexpr (std::is_same_v<T, BFloat16>)
    return static_cast<float>(x);
  else
    return static_cast<double>(x);
}

/// Calls f.template operator()<T>() with the type of `t`.
template <class F>
decltype(auto) on_type(DType t, F&& f) {
  switch (t) {
    case DType::F32:
      return f.template operator()<float>();
    case DType::BF16:
      return f.template operator()<BFloat16>();
    case DType::F64:
      return f.template operator()<double>();
    case DType::I32:
      return f.template operator()<i32>();
    case DType::I64:
      return f.template operator()<i64>();
  }
  fail(ExitCode::Internal, "no element type has the number ", static_cast<int>(t));
}

/// Calls f.template operator()<T>() with the floating-point type of `t`: float, BFloat16 or double.
template <class F>
decltype(auto) on_float(DType t, F&& f) {
  switch (t) {
    case DType::F32:
      return f.template operator()<float>();
    case DType::BF16:
      return f.template operator()<BFloat16>();
    case DType::F64:
      return f.template operator()<double>();
    default:
      fail(ExitCode::Internal, "a floating-point tensor is needed, got ", name_of(t));
  }
}

}  // namespace mcpp
