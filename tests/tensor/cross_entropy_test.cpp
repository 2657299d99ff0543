#include "tests/support/gradcheck.h"
#include "tests/support/ops.h"

namespace mcpp::test {
namespace {

class CrossEntropyOpsTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, CrossEntropyOpsTest, every_type(), ops_name);

constexpr i64 kFirst = 50;
constexpr double kInf = std::numeric_limits<double>::infinity();

/// Returns targets on this rank, on other ranks, and ignored ones.
std::vector<i32> targets_for(i64 rows, i64 columns) {
  std::vector<i32> targets;
  for (i64 r = 0; r < rows; ++r) {
    const i64 local_target = kFirst + r * 7 % columns;
    targets.push_back(static_cast<i32>(r % 5 == 1   ? -1
                                       : r % 5 == 2 ? 0
                                       : r % 5 == 3 ? kFirst + columns + 1
                                                    : local_target));
  }
  return targets;
}

struct Stats {
  Numbers largest, sum, target, lse;
};
Stats reference(const Numbers& x, const std::vector<i32>& targets, i64 n, i64 valid) {
  Stats s;
  for (std::size_t r = 0; r < targets.size(); ++r) {
    const double* row = x.data() + static_cast<i64>(r) * n;
    double largest = -kInf, sum = 0;
    for (i64 i = 0; i < valid; ++i) largest = std::max(largest, row[i]);
    for (i64 i = 0; i < valid; ++i) sum += std::exp(row[i] - largest);
    const i64 target = targets[r] - kFirst;
    s.largest.push_back(largest);
    s.sum.push_back(sum);
    s.target.push_back(targets[r] >= 0 && target >= 0 && target < n ? row[target] : 0);
    s.lse.push_back(largest + std::log(sum));
  }
  return s;
}

TEST_P(CrossEntropyOpsTest, StatsAndGradientMatchReference) {
  constexpr double kScale = 0.25;
  for (const auto [rows, n] : kSizes) {
    for (const i64 valid : {n, n - n / 3}) {
      for (const double spread : {1.0, 1e4}) {
        const Numbers x = normals(rows * n, 1, spread);
        const std::vector<i32> ids = targets_for(rows, valid);
        const Stats stats = reference(x, ids, n, valid);
        Numbers lse = stats.lse;
        for (double& v : lse) v = rounded(v, accumulate_dtype());
        const auto outputs = run([&](Device& device) {
          const Tensor targets = integers_of(ids, device);
          Tensor logits = tensor_of(x, {rows, n}, dtype(), device);
          Tensor largest = garbage({rows}, accumulate_dtype(), device), sum = Tensor::like(largest),
                 hit = Tensor::like(largest);
          ops::cross_entropy_stats(logits, targets, kFirst, valid, largest, sum, hit);
          ops::cross_entropy_gradient(logits, targets, kFirst, valid,
                                      tensor_of(lse, {rows}, accumulate_dtype(), device), kScale, 0);
          return std::vector{largest, sum, hit, logits};
        });
        expect_close(outputs[0], stats.largest, 0, 0, "largest");
        expect_close(outputs[1], stats.sum, 4 * tolerance(accumulate_dtype()), 1, "sum of exp");
        expect_close(outputs[2], stats.target, 0, 0, "target");
        Numbers gradient(x.size());
        for (i64 r = 0; r < rows; ++r) {
          const i64 target = ids[static_cast<std::size_t>(r)];
          for (i64 i = 0; target >= 0 && i < valid; ++i)
            gradient[r * n + i] =
                (std::exp(x[r * n + i] - lse[static_cast<std::size_t>(r)]) - (i == target - kFirst)) * kScale;
        }
        // The error of exp(x - lse) is that of rounding x - lse, which is relative to its magnitude.
        const double magnitude = is_low_precision(dtype()) ? 1e-4 : spread;
        expect_close(outputs[3], gradient, tolerance(dtype()), magnitude, "gradient");
      }
    }
  }
}

TEST_P(CrossEntropyOpsTest, HandlesInfiniteAndNaNLogits) {
  const i64 n = 5000;
  Numbers x = normals(3 * n, 1);
  std::fill(x.begin(), x.begin() + 4500, -kInf);  // an entire block of masked logits
  x[n + 4321] = std::nan("");
  std::fill(x.begin() + 2 * n, x.end(), -kInf);
  const auto outputs = run([&](Device& device) {
    const Tensor targets = integers_of({4600, 0, -1}, device);
    Tensor logits = tensor_of(x, {3, n}, dtype(), device);
    Tensor largest = garbage({3}, accumulate_dtype(), device), sum = Tensor::like(largest), hit = Tensor::like(largest);
    ops::cross_entropy_stats(logits, targets, 0, n, largest, sum, hit);
    ops::cross_entropy_gradient(logits, targets, 0, n, tensor_of({3, 3, 3}, {3}, accumulate_dtype(), device), 1, 0);
    return std::vector{largest, sum, logits};
  });
  const Numbers sum = to_doubles(outputs[1]), gradient = to_doubles(outputs[2]);
  EXPECT_GT(sum[0], 1);
  EXPECT_TRUE(std::isfinite(sum[0]));
  EXPECT_TRUE(std::isnan(sum[1]));
  EXPECT_EQ(sum[2], 0);
  EXPECT_EQ(to_doubles(outputs[0])[2], -kInf);
  EXPECT_EQ(gradient[0], 0);
  EXPECT_TRUE(std::isnan(gradient[n + 4321]));
}

// The gradient for lse = 0 and without a target on this rank is the exponential itself.
TEST_P(CrossEntropyOpsTest, ExponentialIsAccurate) {
  const i64 count = 20000;
  struct Range {
    double lowest, highest, relative;
  };
  const Range range = dtype() == DType::F64   ? Range{-708, 709, 0x1p-51}
                      : dtype() == DType::F32 ? Range{-87, 88, 0x1p-22}
                      : dtype() == DType::F16 ? Range{-9.7, 11, 0x1p-10}
                                              : Range{-87, 88, 0x1p-7};
  Numbers x, expected;
  for (i64 i = 0; i < count; ++i) {
    x.push_back(rounded(range.lowest + (range.highest - range.lowest) * static_cast<double>(i) / count, dtype()));
    expected.push_back(rounded(std::exp(x.back()), dtype()));
  }
  for (const auto& [argument, value] : std::vector<std::pair<double, double>>{{-kInf, 0}, {kInf, kInf}, {0, 1}}) {
    x.push_back(argument);
    expected.push_back(value);
  }
  const i64 n = static_cast<i64>(x.size());
  const auto outputs = run([&](Device& device) {
    Tensor logits = tensor_of(x, {1, n}, dtype(), device);
    ops::cross_entropy_gradient(logits, integers_of({0}, device), kFirst, n,
                                Tensor::zeros({1}, accumulate_dtype(), device), 1, 0);
    return std::vector{logits};
  });
  expect_close(outputs[0], expected, range.relative, 0, "exp");
}

TEST(CrossEntropyGradientTest, MatchesFiniteDifferences) {
  CpuDevice device;
  const i64 rows = 6, n = 13, valid = 11;
  const std::vector<i32> ids{kFirst, kFirst + 10, -1, kFirst + 4, kFirst + 4, kFirst + 1};
  const Tensor targets = integers_of(ids, device), x = random_tensor({rows, n}, DType::F64, device, 1, 3);
  Tensor largest = Tensor::like(x, {rows}), sum = Tensor::like(largest), hit = Tensor::like(largest),
         lse = Tensor::like(largest), dx = Tensor::like(x);
  const auto loss = [&] {
    double total = 0;
    ops::cross_entropy_stats(x, targets, kFirst, valid, largest, sum, hit);
    for (i64 r = 0; r < rows; ++r) {
      lse.data<double>()[r] = largest.data<double>()[r] + std::log(sum.data<double>()[r]);
      if (ids[static_cast<std::size_t>(r)] >= 0) total += 0.5 * (lse.data<double>()[r] - hit.data<double>()[r]);
    }
    return total;
  };
  loss();
  ops::copy(x, dx);
  ops::cross_entropy_gradient(dx, targets, kFirst, valid, lse, 0.5, 0);
  expect_gradient(loss, x, dx, "logits", 1e-6, 1000);

  constexpr double kCap = 2;
  const Tensor before = random_tensor({rows, n}, DType::F64, device, 2, 3);
  const auto capped_loss = [&] {
    Tensor capped = x;
    ops::copy(before, capped);
    ops::soft_cap(capped, kCap);
    return loss();
  };
  capped_loss();
  ops::copy(x, dx);
  ops::cross_entropy_gradient(dx, targets, kFirst, valid, lse, 0.5, kCap);
  expect_gradient(capped_loss, before, dx, "logits before a soft cap", 1e-6, 1000);
}

}  // namespace
}  // namespace mcpp::test
