// Element types of tensors, including the two 16-bit types that C++ lacks.
#pragma once
#include <bit>
#include <string_view>
#include <type_traits>

#include "base/check.h"
#include "base/types.h"

namespace mcpp {

/// Element type. F64 exists only on the CPU, for gradient checks in high precision.
enum class DType : u8 { F32, BF16, F16, F64, I32, I64 };

constexpr i64 size_of(DType t) {
  switch (t) {
    case DType::BF16:
    case DType::F16:
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

/// Returns "fp32", "bf16", "fp16", "fp64", "int32" or "int64".
constexpr std::string_view name_of(DType t) {
  switch (t) {
    case DType::F32:
      return "fp32";
    case DType::BF16:
      return "bf16";
    case DType::F16:
      return "fp16";
    case DType::F64:
      return "fp64";
    case DType::I32:
      return "int32";
    case DType::I64:
      return "int64";
  }
  return "";
}

constexpr bool is_float(DType t) {
  return t != DType::I32 && t != DType::I64;
}

/// Returns true for 16-bit floating-point types, whose arithmetic and sums are done in fp32.
constexpr bool is_low_precision(DType t) {
  return t == DType::BF16 || t == DType::F16;
}

/// Bfloat16: the upper half of an IEEE single. Conversion from float rounds to nearest even and preserves NaN.
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

/// IEEE half: 5 exponent bits, 10 fraction bits; maximum 65504, minimum 2^-24. Conversion from float rounds to nearest
/// even, to infinity from 65520 on, and preserves NaN; bitwise identical to the x86 instructions (F16C).
struct Float16 {
  u16 bits = 0;

  Float16() = default;
  constexpr explicit Float16(float value) : bits(round(std::bit_cast<u32>(value))) {}
  constexpr explicit operator float() const { return std::bit_cast<float>(widen(bits)); }

 private:
  // Branch-free, so that loops over it vectorize.
  static constexpr u16 round(u32 x) {
    const u32 magnitude = x & 0x7FFFFFFF;
    const u32 normal = (magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13;  // exponent bias: 127 - 15
    // The last bit of 0.5 as a float is 2^-24, so the addition rounds to the subnormals, which are multiples of it.
    const u32 subnormal = std::bit_cast<u32>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000;
    const u32 nan = 0x7E00 | (magnitude >> 13 & 0x3FF);
    const u32 finite = magnitude < 0x38800000 ? subnormal : normal;  // 2^-14
    const u32 rounded = magnitude < 0x477FF000 ? finite : 0x7C00;    // 65520
    return static_cast<u16>((x >> 16 & 0x8000) | (magnitude > 0x7F800000 ? nan : rounded));
  }
  static constexpr u32 widen(u16 x) {
    const u32 magnitude = (x & 0x7FFFu) << 13;
    const u32 scaled = std::bit_cast<u32>(std::bit_cast<float>(magnitude) * 0x1p112f);  // exact, including subnormals
    const u32 special = magnitude > 0x0F800000 ? 0x7FC00000 : magnitude == 0x0F800000 ? 0x7F800000 : 0;
    return (x & 0x8000u) << 16 | scaled | special;
  }
};

/// True for the 16-bit floating-point types; see is_low_precision(DType).
template <class T>
inline constexpr bool kIsLowPrecision = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

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
struct DTypeOf<Float16> {
  static constexpr DType value = DType::F16;
};
template <>
struct DTypeOf<i32> {
  static constexpr DType value = DType::I32;
};
template <>
struct DTypeOf<i64> {
  static constexpr DType value = DType::I64;
};

/// Converts from double with a single rounding, and to double exactly.
template <class T>
constexpr T from_double(double x) {
  if constexpr (kIsLowPrecision<T>)
    return T(static_cast<float>(x));
  else
    return static_cast<T>(x);
}
template <class T>
constexpr double to_double(T x) {
  if constexpr (kIsLowPrecision<T>)
    return static_cast<float>(x);
  else
    return static_cast<double>(x);
}

/// Calls f.template operator()<T>() with the C++ type of `t`.
template <class F>
decltype(auto) on_type(DType t, F&& f) {
  switch (t) {
    case DType::F32:
      return f.template operator()<float>();
    case DType::BF16:
      return f.template operator()<BFloat16>();
    case DType::F16:
      return f.template operator()<Float16>();
    case DType::F64:
      return f.template operator()<double>();
    case DType::I32:
      return f.template operator()<i32>();
    case DType::I64:
      return f.template operator()<i64>();
  }
  fail(ExitCode::Internal, "invalid element type ", static_cast<int>(t));
}

/// Calls f.template operator()<T>() with the floating-point type of `t`: float, BFloat16, Float16 or double.
template <class F>
decltype(auto) on_float(DType t, F&& f) {
  switch (t) {
    case DType::F32:
      return f.template operator()<float>();
    case DType::BF16:
      return f.template operator()<BFloat16>();
    case DType::F16:
      return f.template operator()<Float16>();
    case DType::F64:
      return f.template operator()<double>();
    default:
      fail(ExitCode::Internal, "expected a floating-point type, not ", name_of(t));
  }
}

// Type in which arithmetic on a given type is performed. It is also the type of statistics and main gradients.

/// Returns fp32, or fp64 for fp64.
constexpr DType accumulate_dtype(DType t) {
  return t == DType::F64 ? DType::F64 : DType::F32;
}
template <class T>
using AccumulateType = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Calls f.template operator()<T>() with the C++ type of a statistics dtype: float or double.
template <class F>
decltype(auto) on_accumulate_dtype(DType t, F&& f) {
  MCPP_CHECK(t == accumulate_dtype(t), "statistics must be fp32 or fp64, not ", name_of(t));
  if (t == DType::F64) return f.template operator()<double>();
  return f.template operator()<float>();
}

}  // namespace mcpp
