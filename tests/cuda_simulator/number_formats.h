// Conversion of elements in memory to double and back.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace mcpp::cuda_simulator {

enum class Format { F64, F32, F16, BF16, E4M3, E5M2, E8M0, E2M1, I64, I32, I8, Unknown };

/// Returns the bytes of an element, at least one.
inline std::size_t size_of(Format format) {
  switch (format) {
    case Format::F64:
    case Format::I64:
      return 8;
    case Format::F32:
    case Format::I32:
      return 4;
    case Format::F16:
    case Format::BF16:
      return 2;
    default:
      return 1;
  }
}

/// Returns the bytes of `count` elements.
inline std::size_t bytes_of(std::int64_t count, Format format) {
  const auto elements = static_cast<std::size_t>(count);
  return format == Format::E2M1 ? (elements + 1) / 2 : elements * size_of(format);
}

/// Values of the OCP formats E8M0 and E2M1, from their definitions.
inline double value_of_e8m0(unsigned char code) {
  return code == 0xFF ? NAN : std::ldexp(1.0, code - 127);
}
inline double value_of_e2m1(int code) {
  const int exponent = code >> 1 & 3, fraction = code & 1;
  const double magnitude = exponent == 0 ? 0.5 * fraction : std::ldexp(1 + 0.5 * fraction, exponent - 1);
  return code & 8 ? -magnitude : magnitude;
}

template <class T>
T load_as(const void* data, std::int64_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void store_as(void* data, std::int64_t i, T value) {
  std::memcpy(static_cast<char*>(data) + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

/// Returns element i; NaN for formats without arithmetic.
inline double load_element(const void* data, std::int64_t i, Format format) {
  const auto fp8 = [&](__nv_fp8_interpretation_t kind) {
    return static_cast<double>(__half2float(__half(__nv_cvt_fp8_to_halfraw(load_as<unsigned char>(data, i), kind))));
  };
  switch (format) {
    case Format::F64:
      return load_as<double>(data, i);
    case Format::F32:
      return load_as<float>(data, i);
    case Format::F16:
      return __half2float(load_as<__half>(data, i));
    case Format::BF16:
      return __bfloat162float(load_as<__nv_bfloat16>(data, i));
    case Format::E4M3:
      return fp8(__NV_E4M3);
    case Format::E5M2:
      return fp8(__NV_E5M2);
    case Format::E8M0:
      return value_of_e8m0(load_as<unsigned char>(data, i));
    case Format::E2M1:  // the first of two elements is in the lower half of a byte
      return value_of_e2m1(load_as<unsigned char>(data, i / 2) >> (i % 2 * 4) & 0xF);
    case Format::I64:
      return static_cast<double>(load_as<std::int64_t>(data, i));
    case Format::I32:
      return load_as<std::int32_t>(data, i);
    default:
      return NAN;
  }
}

/// Rounds to the format, as a store followed by a load.
inline double round_to(double x, Format format) {
  switch (format) {
    case Format::F32:
      return static_cast<float>(x);
    case Format::F16:
      return __half2float(__float2half_rn(static_cast<float>(x)));
    case Format::BF16:
      return __bfloat162float(__float2bfloat16_rn(static_cast<float>(x)));
    default:
      return x;
  }
}

inline void store_element(void* data, std::int64_t i, Format format, double x) {
  switch (format) {
    case Format::F64:
      return store_as(data, i, x);
    case Format::F32:
      return store_as(data, i, static_cast<float>(x));
    case Format::F16:
      return store_as(data, i, __float2half_rn(static_cast<float>(x)));
    case Format::BF16:
      return store_as(data, i, __float2bfloat16_rn(static_cast<float>(x)));
    case Format::I64:
      return store_as(data, i, static_cast<std::int64_t>(x));
    case Format::I32:
      return store_as(data, i, static_cast<std::int32_t>(x));
    default:
      return;
  }
}

}  // namespace mcpp::cuda_simulator
