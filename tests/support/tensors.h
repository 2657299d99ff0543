// Conversions between tensors on any device and host values, and comparison with a reference in double precision.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/philox.h"
#include "tensor/transfer.h"

namespace mcpp::test {

using Numbers = std::vector<double>;

/// Returns the nearest value of type `t`.
inline double rounded(double x, DType t) {
  return on_float(t, [&]<class T>() { return to_double(from_double<T>(x)); });
}

/// Returns the first standard normal values of a seed. Tests use the same values repeatedly, and drawing them takes
/// longer than the tested code, so they are cached.
inline Numbers first_normals(std::size_t count, u64 seed) {
  static std::mutex mutex;
  static std::map<u64, Numbers> drawn;
  const std::lock_guard lock(mutex);
  Numbers& all = drawn[seed];
  for (std::size_t i = all.size(); i < count; ++i) all.push_back(philox_normal(seed, i));
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)};
}

/// Returns standard normal values times `scale`, rounded to `t`.
inline Numbers normals(i64 count, u64 seed, DType t = DType::F64, double scale = 1) {
  Numbers x = first_normals(static_cast<std::size_t>(count), seed);
  on_float(t, [&]<class T>() {
    for (double& v : x) v = to_double(from_double<T>(scale * v));
  });
  return x;
}

/// Copies x into t, rounded to the type of t.
inline void set_values(Tensor& t, const Numbers& x) {
  on_float(t.dtype(), [&]<class T>() {
    std::vector<T> values(x.size());
    std::transform(x.begin(), x.end(), values.begin(), from_double<T>);
    write_values(values, t);
  });
}

/// Returns a tensor of these values. It starts one element into its buffer, so that no code can rely on alignment; with
/// `first` 0 it is aligned.
inline Tensor tensor_of(const Numbers& x, const Shape& shape, DType t, Device& device, i64 first = 1) {
  Tensor result = Tensor::empty({first + numel(shape)}, t, device).flat(first, numel(shape)).view(shape);
  set_values(result, x);
  return result;
}

/// Returns integers() of a vector or a braced list.
inline Tensor integers_of(const std::vector<i32>& x, Device& device) {
  return integers(x, device);
}

/// Returns a tensor of NaN for outputs that must be overwritten.
inline Tensor garbage(const Shape& shape, DType t, Device& device, i64 first = 1) {
  return tensor_of(Numbers(static_cast<std::size_t>(numel(shape)), std::nan("")), shape, t, device, first);
}

inline Tensor random_tensor(const Shape& shape, DType t, Device& device, u64 seed, double scale = 1, i64 first = 1) {
  return tensor_of(normals(numel(shape), seed, t, scale), shape, t, device, first);
}

inline Numbers to_doubles(const Tensor& x) {
  Numbers result(static_cast<std::size_t>(x.numel()));
  on_float(x.dtype(), [&]<class T>() {
    const HostValues<T> values(x);
    std::transform(values.begin(), values.end(), result.begin(), to_double<T>);
  });
  return result;
}

inline std::vector<std::byte> bytes_of(const Tensor& x) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(x.bytes()));
  read_bytes(x, bytes.data());
  return bytes;
}

/// Returns a copy of x on a CPU.
inline Tensor copy_of(const Tensor& x, CpuDevice& host) {
  Tensor copy = Tensor::empty(x.shape(), x.dtype(), host);
  read_bytes(x, copy.raw());
  return copy;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() && bytes_of(a) == bytes_of(b);
}

/// Returns the Euclidean norm of a - b relative to that of b; 0 if both are 0.
inline double relative_distance(const Numbers& a, const Numbers& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 1e-300;
  for (std::size_t i = 0; i < b.size(); ++i) difference += (a.at(i) - b[i]) * (a.at(i) - b[i]), norm += b[i] * b[i];
  return std::sqrt(difference / norm);
}

/// Returns the relative error of one operation with a final rounding: one rounding step in bf16, half of one in fp16.
inline double tolerance(DType t) {
  return t == DType::F64 ? 1e-13 : t == DType::F32 ? 1e-6 : t == DType::F16 ? 0x1p-11 : 0x1p-8;
}

/// Checks that each element is within `relative` of the expected value, or of `magnitude` (for sums that cancel). NaN
/// matches NaN, and infinities match themselves.
inline void expect_close(const Tensor& actual, const Numbers& expected, double relative, double magnitude,
                         const std::string& what) {
  const Numbers x = to_doubles(actual);
  ASSERT_EQ(x.size(), expected.size()) << what;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == expected[i] || (std::isnan(x[i]) && std::isnan(expected[i]))) continue;
    const double error = std::abs(x[i] - expected[i]);
    ASSERT_LE(error, relative * std::max(std::abs(expected[i]), magnitude))
        << what << "[" << i << "] = " << x[i] << ", not " << expected[i];
  }
}
inline void expect_close(const Tensor& actual, const Numbers& expected, const std::string& what, double factor = 1) {
  expect_close(actual, expected, factor * tolerance(actual.dtype()), is_low_precision(actual.dtype()) ? 1e-3 : 1, what);
}

}  // namespace mcpp::test
