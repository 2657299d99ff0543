#include "tensor/ops/dropout.h"

#include <algorithm>

#include "tests/support/gradcheck.h"
#include "tests/support/ops.h"

namespace mcpp::test {
namespace {

class DropoutOpsTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, DropoutOpsTest, every_type(), ops_name);

/// Applies `of` to the random word of every element, as struct Dropout defines it.
template <class F>
Numbers factors(const Dropout& d, i64 rows, i64 n, F&& of) {
  Numbers result;
  const i64 batch = static_cast<i64>(d.samples.size());
  for (i64 r = 0; r < rows; ++r) {
    const u64 sample = static_cast<u64>(d.samples[static_cast<std::size_t>(r % batch)]);
    for (i64 i = 0; i < n; ++i) {
      const i64 column = d.first_column + i;
      const Philox4 words =
          philox4x32(d.key, {static_cast<u32>(sample), static_cast<u32>(sample >> 32),
                             static_cast<u32>(d.positions.at(r / batch)), static_cast<u32>(column / 4)});
      result.push_back(of(words[static_cast<std::size_t>(column % 4)]));
    }
  }
  return result;
}

/// Returns 0 or 1 / (1 - p) for every element.
Numbers factors(const Dropout& d, i64 rows, i64 n) {
  const double p = static_cast<double>(d.p);
  return factors(d, rows, n, [=](u32 word) { return word >= p * 0x1p32 ? 1 / (1 - p) : 0; });
}

Dropout site(float p) {
  return {.p = p,
          .key = 0x1234567890ABCDEF,
          .samples = {7, (i64{1} << 40) + 3},
          .positions = {.first = 5, .split = 40, .second = 100},
          .first_column = 6};
}

TEST_P(DropoutOpsTest, DropoutMatchesDefinition) {
  for (const auto [odd_rows, n] : kSizes) {
    const i64 rows = odd_rows * 2;
    const Numbers x = normals(rows * n, 1), bias = normals(n, 2), residual = normals(rows * n, 3);
    for (float p : {0.0f, 0.1f, 0.5f, 0.999f}) {
      const Dropout d = site(p);
      const auto outputs = run([&](Device& device) {
        const Shape shape{rows, n};
        const Tensor t = tensor_of(x, shape, dtype(), device), b = tensor_of(bias, {n}, dtype(), device);
        Tensor y = garbage(shape, dtype(), device), in_place = tensor_of(x, shape, dtype(), device);
        Tensor with_bias = tensor_of(residual, shape, dtype(), device);
        Tensor without = garbage(shape, dtype(), device);
        ops::dropout(t, d, y);
        ops::dropout(in_place, d, in_place);
        ops::bias_dropout_add(t, &b, with_bias, d, with_bias);
        ops::bias_dropout_add(t, nullptr, tensor_of(residual, shape, dtype(), device), d, without);
        return std::vector{y, in_place, with_bias, without};
      });
      const Numbers factor = factors(d, rows, n);
      Numbers y = x, with_bias = x, without = x;
      for (std::size_t i = 0; i < x.size(); ++i) {
        y[i] = x[i] * factor[i];
        with_bias[i] = residual[i] + (x[i] + bias[i % static_cast<std::size_t>(n)]) * factor[i];
        without[i] = residual[i] + y[i];
      }
      const double magnitude = is_low_precision(dtype()) ? 0.01 : p > 0.9f ? 1000 : 4;
      expect_close(outputs[0], y, tolerance(dtype()), magnitude, "dropout");
      EXPECT_TRUE(same_bits(outputs[0], outputs[1]));
      expect_close(outputs[2], with_bias, tolerance(dtype()), magnitude, "bias_dropout_add");
      expect_close(outputs[3], without, tolerance(dtype()), magnitude, "bias_dropout_add without bias");
    }
  }
}

TEST_P(DropoutOpsTest, DropoutIsIndependentOfLayout) {
  const i64 seq = 12, n = 203;
  const Dropout full{.p = 0.3f, .key = 99, .samples = {4, 5, 6}};
  const auto ones = [&](i64 rows, i64 columns, Device& device) {
    return tensor_of(Numbers(static_cast<std::size_t>(rows * columns), 1.0), {rows, columns}, dtype(), device);
  };
  const auto outputs = run([&](Device& device) {
    Tensor all = ones(seq * 3, n, device), part = ones(4 * 2, 50, device);
    ops::dropout(all, full, all);
    Dropout shard = full;
    shard.samples = {6, 4};
    shard.positions = {.first = 2, .split = 1, .second = 9};
    shard.first_column = 101;
    ops::dropout(part, shard, part);
    return std::vector{all, part};
  });
  const Numbers all = to_doubles(outputs[0]), part = to_doubles(outputs[1]);
  const i64 column_of_sample[]{2, 0};
  for (i64 s = 0; s < 4; ++s)
    for (i64 b = 0; b < 2; ++b)
      for (i64 i = 0; i < 50; ++i)
        ASSERT_EQ(part[(s * 2 + b) * 50 + i],
                  all[(PositionRanges{2, 1, 9}.at(s) * 3 + column_of_sample[b]) * n + 101 + i]);
}

TEST_P(DropoutOpsTest, DropoutKeepsExpectedFraction) {
  const i64 rows = 64, n = 4096;
  const float p = 0.2f;
  const auto outputs = run([&](Device& device) {
    Tensor x = tensor_of(Numbers(rows * n, 1.0), {rows, n}, dtype(), device);
    ops::dropout(x, {.p = p, .key = 3, .samples = {0}}, x);
    return std::vector{x};
  });
  double sum = 0, pairs = 0, previous = 0;
  for (double v : to_doubles(outputs[0])) {
    const double is_kept = v > 0 ? 1 : 0;
    sum += is_kept;
    pairs += is_kept * previous;
    previous = is_kept;
  }
  const double count = rows * n, keep = 1 - static_cast<double>(p);
  EXPECT_NEAR(sum / count, keep, 4 * std::sqrt(keep * (1 - keep) / count));
  // Neighbors are independent: the probability that both are kept is the square of that of one.
  EXPECT_NEAR(pairs / count, keep * keep, 8 * std::sqrt(keep * (1 - keep) / count));
}

TEST_P(DropoutOpsTest, JitterMatchesDefinition) {
  for (const auto [odd_rows, n] : kSizes) {
    const i64 rows = odd_rows * 2;
    const Numbers x = normals(rows * n, 1);
    const Dropout d = site(0.01f);
    const auto outputs = run([&](Device& device) {
      Tensor y = garbage({rows, n}, dtype(), device), in_place = tensor_of(x, {rows, n}, dtype(), device);
      ops::jitter(tensor_of(x, {rows, n}, dtype(), device), d, y);
      ops::jitter(in_place, d, in_place);
      return std::vector{y, in_place};
    });
    const double p = static_cast<double>(d.p);
    const Numbers factor = factors(d, rows, n, [=](u32 word) { return 1 - p + 2 * p * (word >> 8) * 0x1p-24; });
    EXPECT_TRUE(std::ranges::all_of(factor, [p](double f) { return f >= 1 - p && f < 1 + p; }));
    Numbers y = x;
    for (std::size_t i = 0; i < x.size(); ++i) y[i] *= factor[i];
    expect_close(outputs[0], y, tolerance(dtype()), is_low_precision(dtype()) ? 0.01 : 4, "jitter");
    EXPECT_TRUE(same_bits(outputs[0], outputs[1]));
  }
}

TEST(DropoutGradientTest, UsesSameMaskAsForward) {
  CpuDevice device;
  const Dropout d{.p = 0.4f, .key = 5, .samples = {1, 2}};
  const Tensor x = random_tensor({6, 23}, DType::F64, device, 1), dy = random_tensor({6, 23}, DType::F64, device, 2);
  const Tensor residual = random_tensor({6, 23}, DType::F64, device, 3),
               bias = random_tensor({23}, DType::F64, device, 4);
  Tensor y = Tensor::like(x), dx = Tensor::like(x), db = Tensor::like(bias);
  const auto forward = [&] {
    ops::bias_dropout_add(x, &bias, residual, d, y);
    return dot(y, dy);
  };
  ops::dropout(dy, d, dx);
  ops::column_sum(dx, db, 0);
  expect_gradient(forward, x, dx, "dx");
  expect_gradient(forward, bias, db, "dbias");
  expect_gradient(forward, residual, dy, "dresidual");
}

}  // namespace
}  // namespace mcpp::test
