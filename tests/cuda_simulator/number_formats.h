// Conversion of elements in memory to double and back.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace mcpp::cuda_simulator {

enum class Format { F64, F32, F16, BF16, E4M3, E5M2, I64, I32, I8, Unknown };

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
