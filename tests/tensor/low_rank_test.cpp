#include "tensor/ops/low_rank.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tensor/ops/ops.h"
#include "tests/support/gpu.h"
#include "tests/support/tensors.h"

namespace mcpp {
namespace {

using test::Numbers;

class LowRankTest : public testing::TestWithParam<std::tuple<DType, DeviceType>> {
 protected:
  void SetUp() override {
    const DeviceType type = std::get<1>(GetParam());
    if (const std::string why = test::why_missing(type); !why.empty()) GTEST_SKIP() << why;
    device_ = test::make_device(type);
  }
  static DType dtype() { return std::get<0>(GetParam()); }
  Tensor tensor(const Shape& shape, const Numbers& values) {
    Tensor t = Tensor::empty(shape, dtype(), *device_);
    test::set_values(t, values);
    return t;
  }
  Tensor random(i64 rows, i64 columns) { return tensor({rows, columns}, test::normals(rows * columns, 3, dtype())); }
  double tolerance() const { return dtype() == DType::F64 ? 1e-13 : 1e-6; }

  /// Returns X^T Y in double precision.
  static Numbers products(const Tensor& x, const Tensor& y) {
    const Numbers a = test::to_doubles(x), b = test::to_doubles(y);
    const auto n = static_cast<std::size_t>(x.dim(0)), r = static_cast<std::size_t>(x.dim(1)),
               s = static_cast<std::size_t>(y.dim(1));
    Numbers result(r * s);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < r; ++j)
        for (std::size_t k = 0; k < s; ++k) result[j * s + k] += a[i * r + j] * b[i * s + k];
    return result;
  }
  void expect_orthonormal(const Tensor& x) const {
    const Numbers squares = products(x, x);
    const auto r = static_cast<std::size_t>(x.dim(1));
    for (std::size_t j = 0; j < r; ++j)
      for (std::size_t k = 0; k < r; ++k) EXPECT_NEAR(squares[j * r + k], j == k ? 1 : 0, tolerance()) << j << " " << k;
  }

  std::unique_ptr<Device> device_;
};

TEST_P(LowRankTest, OrthonormalizeKeepsColumnSpan) {
  const Tensor before = random(57, 5);
  Tensor x = Tensor::like(before);
  ops::copy(before, x);
  ops::orthonormalize(x);
  expect_orthonormal(x);
  // Each original column is in the span of the result: |X^T b| = |b|.
  const Numbers projected = products(x, before), total = products(before, before);
  for (std::size_t j = 0; j < 5; ++j) {
    double square = 0;
    for (std::size_t k = 0; k < 5; ++k) square += projected[k * 5 + j] * projected[k * 5 + j];
    EXPECT_NEAR(square / total[j * 5 + j], 1, tolerance());
    EXPECT_GT(projected[j * 5 + j], 0) << "the first of a span keep their direction";
  }
}

TEST_P(LowRankTest, OrthonormalizeReplacesDependentColumns) {
  Tensor zeros = tensor({40, 3}, Numbers(120, 0.0));
  ops::orthonormalize(zeros);
  expect_orthonormal(zeros);
  Numbers same = test::to_doubles(random(40, 3));
  for (std::size_t i = 0; i < 40; ++i) same[3 * i + 1] = same[3 * i], same[3 * i + 2] = 0;
  Tensor x = tensor({40, 3}, same), again = tensor({40, 3}, same);
  ops::orthonormalize(x);
  ops::orthonormalize(again);
  expect_orthonormal(x);
  EXPECT_EQ(test::to_doubles(x), test::to_doubles(again));
  Tensor square = tensor({3, 3}, Numbers(9, 1.0));
  ops::orthonormalize(square);
  expect_orthonormal(square);
}

TEST_P(LowRankTest, OrthonormalizePropagatesNonFiniteValues) {
  Numbers values = test::to_doubles(random(40, 3));
  values[7] = std::numeric_limits<double>::infinity();
  Tensor x = tensor({40, 3}, values);
  ops::orthonormalize(x);
  EXPECT_FALSE(std::isfinite(ops::sum_of_squares(x)));
}

TEST_P(LowRankTest, CopyIfFiniteCopiesOnlyWithFiniteFactor) {
  Tensor to = tensor({2}, {1, 2});
  const Tensor from = tensor({2}, {3, 4});
  Tensor factor = Tensor::empty({1}, DType::F64, *device_);
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    test::set_values(factor, {bad});
    ops::copy_if_finite(from, to, factor);
    EXPECT_EQ(test::to_doubles(to), (Numbers{1, 2}));
  }
  test::set_values(factor, {0.5});
  ops::copy_if_finite(from, to, factor);
  EXPECT_EQ(test::to_doubles(to), (Numbers{3, 4}));
}

TEST_P(LowRankTest, OrthonormalizeRejectsWideMatrices) {
  Tensor wide = random(3, 5);
  EXPECT_THROW(ops::orthonormalize(wide), Error);
}

std::string case_name(const testing::TestParamInfo<std::tuple<DType, DeviceType>>& info) {
  return test::on_device(std::string(name_of(std::get<0>(info.param))), std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Types, LowRankTest,
                         testing::Combine(testing::Values(DType::F32, DType::F64),
                                          testing::ValuesIn(test::device_types())),
                         case_name);

}  // namespace
}  // namespace mcpp
