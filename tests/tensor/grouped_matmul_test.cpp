#include <numeric>

#include "tests/support/ops.h"

namespace mcpp::test {
namespace {

class GroupedOps : public Ops {
 protected:
  /// Types of output beside inputs of dtype().
  std::vector<DType> outputs() const {
    return is_narrow(dtype()) ? std::vector{dtype(), DType::F32} : std::vector{dtype()};
  }
  /// The error of sums of so many products of normal numbers, as one of the size of their sums.
  double rounding(DType out) const { return is_narrow(out) ? tolerance(out) : 8 * tolerance(wide()); }
};
INSTANTIATE_TEST_SUITE_P(Types, GroupedOps, every_type(), ops_name);

struct Groups {
  std::vector<i64> rows;
  i64 n, k;

  i64 count() const { return static_cast<i64>(rows.size()); }
  i64 all() const { return std::accumulate(rows.begin(), rows.end(), i64{0}); }
};
const std::vector<Groups> kGroups{
    {{3}, 5, 7},   {{0, 0}, 4, 4}, {{1, 0, 4, 5, 2}, 33, 65}, {{70, 3, 0, 130}, 48, 96}, {{0, 17, 1, 64, 0}, 129, 50},
    {{2, 3}, 6, 0}};

/// f(group, row) for all rows.
template <class F>
void for_each_row(const Groups& groups, F&& f) {
  i64 row = 0;
  for (i64 g = 0; g < groups.count(); ++g) {
    for (i64 i = 0; i < groups.rows[static_cast<std::size_t>(g)]; ++i) f(g, row++);
  }
}

TEST_P(GroupedOps, MultipliesEachGroupWithItsMatrix) {
  for (const Groups& groups : kGroups) {
    for (const bool transpose : {true, false}) {
      for (const DType out : outputs()) {
        const i64 n = groups.n, k = groups.k, all = groups.all();
        const Numbers x = normals(all * k, 1), w = normals(groups.count() * n * k, 2);
        const auto results = run([&](Device& device) {
          Tensor y = garbage({all, n}, out, device);
          const Shape shape{groups.count(), transpose ? n : k, transpose ? k : n};
          ops::grouped_matmul(tensor_of(x, {all, k}, dtype(), device), tensor_of(w, shape, dtype(), device),
                              groups.rows, y, transpose);
          return std::vector{y};
        });
        Numbers y(static_cast<std::size_t>(all * n));
        for_each_row(groups, [&](i64 g, i64 row) {
          for (i64 i = 0; i < n * k; ++i) {
            const i64 column = i / k, at = i % k;
            y[row * n + column] += x[row * k + at] * w[g * n * k + (transpose ? i : at * n + column)];
          }
        });
        expect_close(results[0], y, rounding(out), std::sqrt(static_cast<double>(k)) + 1, "grouped_matmul");
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(GroupedOps, GivesTheGradientOfEachMatrix) {
  for (const Groups& groups : kGroups) {
    for (const float beta : {0.0f, 1.0f}) {
      for (const DType out : outputs()) {
        const i64 n = groups.n, k = groups.k, all = groups.all();
        const Numbers x = normals(all * k, 1), dy = normals(all * n, 2),
                      old = test::normals(groups.count() * n * k, 3, out);
        const auto results = run([&](Device& device) {
          const Shape shape{groups.count(), n, k};
          Tensor dw = beta == 0 ? garbage(shape, out, device) : tensor_of(old, shape, out, device);
          ops::grouped_weight_gradient(tensor_of(dy, {all, n}, dtype(), device),
                                       tensor_of(x, {all, k}, dtype(), device), groups.rows, dw, beta);
          return std::vector{dw};
        });
        Numbers dw = beta == 0 ? Numbers(old.size()) : old;
        for_each_row(groups, [&](i64 g, i64 row) {
          for (i64 i = 0; i < n * k; ++i) dw[g * n * k + i] += dy[row * n + i / k] * x[row * k + i % k];
        });
        expect_close(results[0], dw, rounding(out), std::sqrt(static_cast<double>(all)) + 2, "gradient");
        if (HasFailure()) return;
      }
    }
  }
}

TEST(GroupedMatmul, RefusesWhatDoesNotFit) {
  CpuDevice device;
  const Tensor x = Tensor::zeros({6, 4}, DType::F32, device), w = Tensor::zeros({2, 3, 4}, DType::F32, device);
  Tensor y = Tensor::zeros({6, 3}, DType::F32, device), dw = Tensor::zeros({2, 3, 4}, DType::F32, device);
  const auto multiply = [&](std::vector<i64> rows, bool transpose) { ops::grouped_matmul(x, w, rows, y, transpose); };
  multiply({2, 4}, true);
  EXPECT_THROW(multiply({2, 5}, true), Error);
  EXPECT_THROW(multiply({7, -1}, true), Error);
  EXPECT_THROW(multiply({2, 2, 2}, true), Error);
  EXPECT_THROW(multiply({2, 4}, false), Error);
  const std::vector<i64> rows{2, 4};
  EXPECT_THROW(ops::grouped_weight_gradient(x, y, rows, dw, 0), Error);
  EXPECT_THROW(ops::grouped_weight_gradient(y, x, rows, dw, 0.5f), Error);
}

}  // namespace
}  // namespace mcpp::test
