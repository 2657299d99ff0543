#include "tests/support/ops.h"

namespace mcpp::test::elementwise_test {
namespace {

class ElementwiseOpsTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, ElementwiseOpsTest, every_type(), ops_name);

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();

TEST_P(ElementwiseOpsTest, FillsScaleAndAddToMatchReference) {
  for (const auto [rows, n] : kSizes) {
    const Numbers x = normals(rows * n, 1), y = normals(rows * n, 2);
    const auto outputs = run([&](Device& device) {
      Tensor zero = garbage({rows, n}, dtype(), device), scaled = tensor_of(x, {rows, n}, dtype(), device);
      Tensor sum = tensor_of(y, {rows, n}, dtype(), device);
      ops::fill_zero(zero);
      Tensor filled = garbage({rows, n}, dtype(), device);
      ops::fill(filled, 0.37);
      ops::scale(scaled, 0.37);
      ops::add_to(tensor_of(x, {rows, n}, dtype(), device), sum);
      return std::vector{zero, scaled, sum, filled};
    });
    Numbers scaled = x, sum = x;
    for (double& v : scaled) v *= 0.37;
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += y[i];
    expect_close(outputs[0], Numbers(x.size(), 0.0), "fill_zero");
    expect_close(outputs[1], scaled, "scale");
    expect_close(outputs[2], sum, "add_to");
    EXPECT_EQ(to_doubles(outputs[3]), Numbers(x.size(), rounded(0.37, dtype())));
  }
}

TEST_P(ElementwiseOpsTest, SoftCapMatchesReference) {
  for (const double cap : {0.5, 30.0}) {
    Numbers x = normals(1023, 4, 10);
    for (const double odd : {0.0, 1e-6, -1e-3, 0.0999, -0.1001, 1e4, -1e4}) x.push_back(rounded(odd, dtype()));
    x.push_back(kInf), x.push_back(-kInf), x.push_back(kNaN);
    const i64 count = static_cast<i64>(x.size());
    const auto outputs = run([&](Device& device) {
      Tensor t = tensor_of(x, {count}, dtype(), device);
      ops::soft_cap(t, cap);
      return std::vector{t};
    });
    const Numbers capped = to_doubles(outputs[0]);
    for (std::size_t i = 0; i + 1 < x.size(); ++i) {
      const double expected = cap * std::tanh(x[i] / cap);
      ASSERT_NEAR(capped[i], expected, 4 * tolerance(dtype()) * std::abs(expected) + 1e-300) << x[i];
    }
    EXPECT_TRUE(std::isnan(capped.back()));
  }
}

TEST_P(ElementwiseOpsTest, CopyConvertsLikeScalarTypes) {
  Numbers x = normals(1023, 3, 100);
  // Ties, NaN of every payload, infinities, overflow in rounding, denormals.
  for (u32 bits :
       {0x3F808000u, 0x3F818000u, 0x7FFFFFFFu, 0x7F800001u, 0xFFC00000u, 0x7F7FFFFFu, 0x00000001u, 0x80018000u})
    x.push_back(std::bit_cast<float>(bits));
  const i64 count = static_cast<i64>(x.size());
  for (DType to : {DType::F32, DType::BF16, DType::F16, DType::F64}) {
    const auto outputs = run([&](Device& device) {
      Tensor src = tensor_of(x, {count}, dtype(), device), dst = garbage({count}, to, device);
      ops::copy(src, dst);
      // The reference goes through double, to which both types convert exactly.
      return std::vector{dst, tensor_of(to_doubles(src), {count}, to, device)};
    });
    // A GPU maps every NaN to the same one.
    if (target().device == DeviceType::Cuda)
      expect_close(outputs[0], to_doubles(outputs[1]), 0, 0, "copy");
    else
      EXPECT_TRUE(same_bits(outputs[0], outputs[1])) << "to " << name_of(to);
  }
}

TEST_P(ElementwiseOpsTest, CopyOfIntegersIsExact) {
  const auto outputs = run([](Device& device) {
    const Tensor src = integers_of({1, -2, 1 << 30, 7, 0}, device);
    Tensor dst = integers_of({9, 9, 9, 9, 9}, device);
    ops::copy(src, dst);
    return std::vector{src, dst};
  });
  EXPECT_TRUE(same_bits(outputs[0], outputs[1]));
}

TEST_P(ElementwiseOpsTest, SumOfSquaresIsAccurateAndPropagatesNonFiniteValues) {
  for (const auto [rows, n] : kSizes) {
    Numbers x = normals(rows * n, 4, 1e3);
    double expected = 0;
    for (double v : x) expected += v * v;
    run([&](Device& device) {
      const Tensor t = tensor_of(x, {rows, n}, dtype(), device);
      const double actual = ops::sum_of_squares(t);
      EXPECT_NEAR(actual, expected, 1e-12 * expected);
      return std::vector{tensor_of({actual}, {1}, DType::F64, device)};
    });
    if (x.empty()) continue;
    for (double odd : {kNaN, kInf, -kInf}) {
      x.back() = odd;
      EXPECT_FALSE(std::isfinite(ops::sum_of_squares(tensor_of(x, {rows, n}, dtype(), any_device()))));
    }
  }
}

TEST_P(ElementwiseOpsTest, ColumnSumAndAddBiasMatchReference) {
  for (const auto [rows, n] : kSizes) {
    const Numbers x = normals(rows * n, 5), bias = normals(n, 6), old = test::normals(n, 7, accumulate_dtype());
    const auto outputs = run([&](Device& device) {
      Tensor t = tensor_of(x, {rows, n}, dtype(), device);
      Tensor fresh = garbage({n}, accumulate_dtype(), device), added = tensor_of(old, {n}, accumulate_dtype(), device);
      ops::column_sum(t, fresh, 0);
      ops::column_sum(t, added, 1);
      ops::add_bias(t, tensor_of(bias, {n}, dtype(), device));
      return std::vector{fresh, added, t};
    });
    Numbers sums(static_cast<std::size_t>(n)), with_bias = x;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::size_t column = i % static_cast<std::size_t>(n);
      sums[column] += x[i];
      with_bias[i] += bias[column];
    }
    const double magnitude = 2 * std::sqrt(static_cast<double>(rows)) + 1;
    expect_close(outputs[0], sums, tolerance(accumulate_dtype()), magnitude, "column_sum");
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += old[i];
    expect_close(outputs[1], sums, tolerance(accumulate_dtype()), magnitude, "column_sum added");
    expect_close(outputs[2], with_bias, "add_bias");
  }
}

}  // namespace
}  // namespace mcpp::test::elementwise_test
