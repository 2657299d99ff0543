#include "tests/support/gradcheck.h"
#include "tests/support/ops.h"

namespace mcpp::test {
namespace {

class RowOpsTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, RowOpsTest, every_type(), ops_name);

TEST_P(RowOpsTest, GatherRowsMatchesReference) {
  for (const auto [count, n] : kSizes) {
    const i64 tokens = 40;
    const Numbers x = normals(tokens * n, 1);
    std::vector<i32> rows;
    for (i64 i = 0; i < count; ++i) rows.push_back(static_cast<i32>(i % 7 == 3 ? -1 : i * i * 13 % tokens));
    const auto outputs = run([&](Device& device) {
      Tensor y = garbage({count, n}, dtype(), device);
      ops::gather_rows(tensor_of(x, {tokens, n}, dtype(), device), integers_of(rows, device), y);
      return std::vector{y};
    });
    Numbers y;
    for (const i32 row : rows) {
      for (i64 i = 0; i < n; ++i) y.push_back(row < 0 ? 0 : x[row * n + i]);
    }
    expect_close(outputs[0], y, 0, 0, "gather_rows");
  }
}

/// Returns k slots for each of T tokens among (T + 1) k rows. No row is used twice, and some tokens have no row.
std::vector<i32> scattered(i64 tokens, i64 k) {
  std::vector<i32> slots;
  for (i64 i = 0; i < tokens * k; ++i) {
    const i64 t = i / k, j = i % k;
    slots.push_back(static_cast<i32>((t + j) % 5 == 4 ? -1 : j * (tokens + 1) + (t + 3 * j) % (tokens + 1)));
  }
  return slots;
}

TEST_P(RowOpsTest, CombineRowsMatchesReference) {
  for (const auto [tokens, n] : kSizes) {
    for (const i64 k : {1, 2, 8}) {
      const i64 count = (tokens + 1) * k;
      const std::vector<i32> slots = scattered(tokens, k);
      const Numbers x = normals(count * n, 1), g = normals(tokens * n, 2),
                    weights = test::normals(tokens * k, 3, accumulate_dtype());
      const auto outputs = run([&](Device& device) {
        const Tensor from = tensor_of(x, {count, n}, dtype(), device), dy = tensor_of(g, {tokens, n}, dtype(), device),
                     w = tensor_of(weights, {tokens, k}, accumulate_dtype(), device),
                     at = integers_of(slots, device).view({tokens, k});
        Tensor y = garbage({tokens, n}, dtype(), device), plain = Tensor::like(y),
               dx = tensor_of(Numbers(x.size(), 7), {count, n}, dtype(), device),
               dw = garbage({tokens, k}, accumulate_dtype(), device);
        ops::combine_rows(from, at, &w, y);
        ops::combine_rows(from, at, nullptr, plain);
        ops::combine_rows_backward(dy, from, at, w, dx, dw);
        Tensor in_place = tensor_of(x, {count, n}, dtype(), device),
               dw_again = garbage({tokens, k}, accumulate_dtype(), device);
        ops::combine_rows_backward(dy, in_place, at, w, in_place, dw_again);
        EXPECT_TRUE(same_bits(dw, dw_again));
        return std::vector{y, plain, dx, dw, in_place};
      });
      Numbers y(g.size()), plain(g.size()), dx(x.size(), 7), dw(weights.size()), in_place = x;
      for (std::size_t i = 0; i < slots.size(); ++i) {
        const i64 t = static_cast<i64>(i) / k, row = slots[i];
        for (i64 c = 0; row >= 0 && c < n; ++c) {
          y[t * n + c] += weights[i] * x[row * n + c];
          plain[t * n + c] += x[row * n + c];
          in_place[row * n + c] = dx[row * n + c] = weights[i] * g[t * n + c];
          dw[i] += g[t * n + c] * x[row * n + c];
        }
      }
      const double size = 2 * std::sqrt(static_cast<double>(n)) + 4;  // magnitude of partial sums
      expect_close(outputs[0], y, tolerance(dtype()), 4, "combine_rows");
      expect_close(outputs[1], plain, tolerance(dtype()), 4, "combine_rows without weights");
      expect_close(outputs[2], dx, tolerance(dtype()), 1, "dx");
      expect_close(outputs[3], dw, tolerance(accumulate_dtype()), size, "d_weights");
      expect_close(outputs[4], in_place, tolerance(dtype()), 1, "dx aliasing x");
      if (HasFailure()) return;
    }
  }
}

TEST(CombineRowsGradientTest, MatchesFiniteDifferences) {
  CpuDevice device;
  const i64 tokens = 4, k = 3, n = 5, count = (tokens + 1) * k;
  const Tensor slots = integers_of(scattered(tokens, k), device).view({tokens, k});
  const Tensor x = random_tensor({count, n}, DType::F64, device, 1),
               w = random_tensor({tokens, k}, DType::F64, device, 2),
               dy = random_tensor({tokens, n}, DType::F64, device, 3);
  Tensor y = Tensor::like(dy), dx = Tensor::zeros({count, n}, DType::F64, device), dw = Tensor::like(w);
  const auto loss = [&] {
    ops::combine_rows(x, slots, &w, y);
    return dot(y, dy);
  };
  ops::combine_rows_backward(dy, x, slots, w, dx, dw);
  expect_gradient(loss, x, dx, "x", 1e-6, 1000);
  expect_gradient(loss, w, dw, "weights");
}

TEST(CombineRowsTest, RejectsMismatchedShapes) {
  CpuDevice device;
  const Tensor x = Tensor::zeros({6, 5}, DType::BF16, device), w = Tensor::zeros({3, 2}, DType::BF16, device),
               slots = Tensor::zeros({3, 2}, DType::I32, device);
  Tensor y = Tensor::zeros({3, 5}, DType::BF16, device), wide = Tensor::zeros({3, 5}, DType::F32, device);
  EXPECT_THROW(ops::combine_rows(x, slots, &w, y), Error);  // weights are fp32
  EXPECT_THROW(ops::combine_rows(x, slots, nullptr, wide), Error);
  EXPECT_THROW(ops::combine_rows(x, x, nullptr, y), Error);
  EXPECT_THROW(ops::gather_rows(x, w, y), Error);
}

}  // namespace
}  // namespace mcpp::test
