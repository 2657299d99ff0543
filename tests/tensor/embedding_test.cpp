#include <random>

#include "tests/support/gradcheck.h"
#include "tests/support/ops.h"
#include "tests/support/positions.h"

namespace mcpp::test {
namespace {

class EmbeddingOpsTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, EmbeddingOpsTest, every_type(), ops_name);

/// Returns tokens around rows [first, first + rows): some are outside on either side, and many are repeated.
std::vector<i32> tokens_around(i64 count, i64 first, i64 rows) {
  std::mt19937 random(11);
  std::uniform_int_distribution<i32> uniform(static_cast<i32>(std::max<i64>(0, first - 3)),
                                             static_cast<i32>(first + rows + 2));
  std::vector<i32> tokens(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = i % 3 == 0 ? static_cast<i32>(first) : uniform(random);
  return tokens;
}

TEST_P(EmbeddingOpsTest, EmbeddingAndBackwardMatchReference) {
  for (const auto [count, n] : kSizes) {
    for (const i64 rows : {1, 40, 1500}) {
      if (rows * n > 2'000'000) continue;
      const i64 first = 100;
      const std::vector<i32> ids = tokens_around(count, first, rows);
      const Numbers table = normals(rows * n, 1), dy = normals(count * n, 2),
                    old = test::normals(rows * n, 3, accumulate_dtype());
      const auto outputs = run([&](Device& device) {
        const Tensor tokens = integers_of(ids, device), g = tensor_of(dy, {count, n}, dtype(), device);
        Tensor y = garbage({count, n}, dtype(), device), fresh = garbage({rows, n}, accumulate_dtype(), device),
               added = tensor_of(old, {rows, n}, accumulate_dtype(), device);
        ops::embedding(tokens, tensor_of(table, {rows, n}, dtype(), device), first, y);
        ops::embedding_backward(g, tokens, first, fresh, 0);
        ops::embedding_backward(g, tokens, first, added, 1);
        return std::vector{y, fresh, added};
      });
      Numbers y(dy.size()), sums(table.size()), added = old;
      for (i64 t = 0; t < count; ++t) {
        const i64 row = ids[static_cast<std::size_t>(t)] - first;
        if (row < 0 || row >= rows) continue;
        for (i64 i = 0; i < n; ++i) {
          y[t * n + i] = table[row * n + i];
          sums[row * n + i] += dy[t * n + i];
          added[row * n + i] += dy[t * n + i];
        }
      }
      expect_close(outputs[0], y, 0, 0, "embedding");
      const double magnitude = 4 * std::sqrt(static_cast<double>(count)) + 4;
      expect_close(outputs[1], sums, tolerance(accumulate_dtype()), magnitude, "embedding_backward");
      expect_close(outputs[2], added, tolerance(accumulate_dtype()), magnitude, "embedding_backward added");
    }
  }
}

TEST_P(EmbeddingOpsTest, PositionsAndBackwardMatchReference) {
  for (const auto [seq, n] : kSizes) {
    for (const PositionCase& position_case : every_position_case(seq)) {
      const i64 batch = position_case.ranges.first == 2 ? 1 : 3, rows = seq + 5;
      const Numbers x = normals(seq * batch * n, 1), table = normals(rows * n, 2),
                    old = test::normals(rows * n, 3, accumulate_dtype());
      const auto outputs = run([&](Device& device) {
        const Positions positions = position_case.of(seq, batch, device);
        const Tensor dy = tensor_of(x, {seq, batch, n}, dtype(), device);
        Tensor y = tensor_of(x, {seq, batch, n}, dtype(), device),
               fresh = garbage({rows, n}, accumulate_dtype(), device),
               added = tensor_of(old, {rows, n}, accumulate_dtype(), device),
               halved = tensor_of(old, {rows, n}, accumulate_dtype(), device);
        ops::add_positions(y, tensor_of(table, {rows, n}, dtype(), device), positions);
        ops::add_positions_backward(dy, positions, fresh, 0);
        ops::add_positions_backward(dy, positions, added, 1);
        ops::add_positions_backward(dy, positions, halved, 0.5f);
        return std::vector{y, fresh, added, halved};
      });
      Numbers y = x, sums(old.size()), added = old, halved = old;
      for (double& v : halved) v /= 2;
      const std::vector<i64> positions_in_documents = position_case.in_documents(seq, batch);
      for (i64 row = 0; row < seq * batch; ++row) {
        const i64 first = positions_in_documents[static_cast<std::size_t>(row)] * n;
        for (i64 i = 0; i < n; ++i) {
          y[row * n + i] += table[first + i];
          for (Numbers* t : {&sums, &added, &halved}) (*t)[first + i] += x[row * n + i];
        }
      }
      const double magnitude = position_case.documents == 0 ? 4 : 4 * std::sqrt(static_cast<double>(seq * batch)) + 4;
      expect_close(outputs[0], y, "add_positions");
      expect_close(outputs[1], sums, tolerance(accumulate_dtype()), magnitude, "add_positions_backward");
      expect_close(outputs[2], added, tolerance(accumulate_dtype()), magnitude, "add_positions_backward added");
      expect_close(outputs[3], halved, tolerance(accumulate_dtype()), magnitude, "add_positions_backward halved");
    }
  }
}

TEST(EmbeddingGradientTest, MatchesFiniteDifferences) {
  CpuDevice device;
  const Tensor tokens = integers_of({3, 1, 3, 9, 0, 3}, device);
  const Tensor table = random_tensor({5, 7}, DType::F64, device, 1),
               positions = random_tensor({4, 7}, DType::F64, device, 2);
  const Tensor dy = random_tensor({3, 2, 7}, DType::F64, device, 3);
  Tensor y = Tensor::like(dy), dtable = Tensor::like(table), dpositions = Tensor::like(positions);
  const auto forward = [&] {
    ops::embedding(tokens, table, 0, y);
    ops::add_positions(y, positions, {after(1), {}});
    return dot(y, dy);
  };
  ops::embedding_backward(dy, tokens, 0, dtable, 0);
  ops::add_positions_backward(dy, {after(1), {}}, dpositions, 0);
  expect_gradient(forward, table, dtable, "table");
  expect_gradient(forward, positions, dpositions, "positions");
}

}  // namespace
}  // namespace mcpp::test
