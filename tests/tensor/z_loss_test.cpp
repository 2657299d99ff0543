// Z-loss: the sum, and the gradient of cross entropy with it, against formulas in double precision and finite
// differences.
#include "tensor/ops/z_loss.h"

#include "tests/support/gradcheck.h"
#include "tests/support/ops.h"

namespace mcpp::test {
namespace {

class ZLossTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, ZLossTest, every_type(), ops_name);

double log_sum_exp(const double* x, i64 count) {
  double sum = 0;
  for (i64 i = 0; i < count; ++i) sum += std::exp(x[i]);
  return std::log(sum);
}

TEST_P(ZLossTest, SumAndGradientMatchFormula) {
  constexpr double kScale = 0.25, kCoeff = 0.01;
  for (const auto [rows, n] : kSizes) {
    const Numbers x = normals(rows * n, 1, 2.0);
    std::vector<i32> ids;
    Numbers lse, gradient(x.size());
    double total = 0;
    for (i64 r = 0; r < rows; ++r) {
      ids.push_back(r % 5 == 1 ? -1 : static_cast<i32>(r * 7 % n));
      lse.push_back(rounded(log_sum_exp(x.data() + r * n, n), accumulate_dtype()));
      if (ids.back() < 0) continue;
      total += kCoeff * lse.back() * lse.back();
      for (i64 i = 0; i < n; ++i)
        gradient[static_cast<std::size_t>(r * n + i)] =
            (std::exp(x[static_cast<std::size_t>(r * n + i)] - lse.back()) * (1 + 2 * kCoeff * lse.back()) -
             (i == ids.back())) *
            kScale;
    }
    const auto outputs = run([&](Device& device) {
      const Tensor targets = integers_of(ids, device);
      Tensor logits = tensor_of(x, {rows, n}, dtype(), device),
             sums = tensor_of(lse, {rows}, accumulate_dtype(), device), sum = garbage({1}, DType::F64, device);
      ops::z_loss(sums, targets, kCoeff, sum);
      ops::cross_entropy_gradient(logits, targets, 0, n, sums, kScale, 0);
      return std::vector{sum, logits};
    });
    expect_close(outputs[0], {total}, 1e-12, total + 1e-30, "sum");
    expect_close(outputs[1], gradient, tolerance(dtype()), is_low_precision(dtype()) ? 1e-4 : 2, "gradient");
  }
}

/// Beyond the range of the formula, the exponentials keep a positive factor. NaN stays NaN.
TEST_P(ZLossTest, HandlesUnusualValues) {
  if (accumulate_dtype() != dtype()) GTEST_SKIP() << "does not depend on the type of the logits";
  const auto outputs = run([&](Device& device) {
    Tensor lse = tensor_of({-100, 0, std::nan("")}, {3}, dtype(), device), sum = garbage({1}, DType::F64, device);
    ops::z_loss(lse, integers_of({0, -1, -1}, device), 0.01, sum);
    return std::vector{lse, sum};
  });
  const Numbers lse = to_doubles(outputs[0]);
  EXPECT_NEAR(lse[0], -100 + 20 * std::log(2.0), 1e-4);
  EXPECT_EQ(lse[1], 0);
  EXPECT_TRUE(std::isnan(lse[2]));
  EXPECT_NEAR(to_doubles(outputs[1])[0], 0.01 * 1e4, 1e-9);
}

TEST(ZLossGradientTest, MatchesFiniteDifferences) {
  CpuDevice device;
  constexpr i64 kRows = 4, kColumns = 13;
  constexpr double kCoeff = 0.01;
  const std::vector<i32> ids{0, 10, -1, 4};
  const Tensor targets = integers_of(ids, device), x = random_tensor({kRows, kColumns}, DType::F64, device, 1, 3);
  const auto loss = [&] {
    double total = 0;
    for (i64 r = 0; r < kRows; ++r) {
      const double* row = x.data<double>() + r * kColumns;
      const i32 target = ids[static_cast<std::size_t>(r)];
      const double lse = log_sum_exp(row, kColumns);
      if (target >= 0) total += lse - row[target] + kCoeff * lse * lse;
    }
    return total;
  };
  Tensor lse = Tensor::like(x, {kRows}), dx = Tensor::like(x), sum = Tensor::like(x, {1});
  for (i64 r = 0; r < kRows; ++r) lse.data<double>()[r] = log_sum_exp(x.data<double>() + r * kColumns, kColumns);
  ops::copy(x, dx);
  ops::z_loss(lse, targets, kCoeff, sum);
  ops::cross_entropy_gradient(dx, targets, 0, kColumns, lse, 1, 0);
  expect_gradient(loss, x, dx, "logits", 1e-6, 1000);
}

}  // namespace
}  // namespace mcpp::test
