#include <numeric>

#include "tensor/cpu/gemm/gemm.h"
#include "tests/support/ops.h"

namespace mcpp::test {
namespace {

class GroupedMatmulOpsTest : public Ops {
 protected:
  /// Returns the output types supported for inputs of dtype().
  std::vector<DType> outputs() const {
    return is_low_precision(dtype()) ? std::vector{dtype(), DType::F32} : std::vector{dtype()};
  }
  /// Returns the error of sums of this many products of normal values, relative to the magnitude of the sums.
  double rounding(DType out) const {
    return is_low_precision(out) ? tolerance(out) : 8 * tolerance(accumulate_dtype());
  }
};
INSTANTIATE_TEST_SUITE_P(Types, GroupedMatmulOpsTest, every_type(), ops_name);

struct Groups {
  std::vector<i64> rows;
  i64 n, k;

  i64 count() const { return static_cast<i64>(rows.size()); }
  i64 all() const { return std::accumulate(rows.begin(), rows.end(), i64{0}); }
};
const std::vector<Groups> kGroups{{{3}, 5, 7},
                                  {{0, 0}, 4, 4},
                                  {{1, 0, 4, 5, 2}, 33, 65},
                                  {{70, 3, 0, 130}, 48, 96},
                                  {{0, 17, 1, 64, 0}, 129, 50},
                                  {{70, 0, 3}, 64, 288},
                                  {{2, 3}, 6, 0}};

/// Calls f(group, row) for all rows.
template <class F>
void for_each_row(const Groups& groups, F&& f) {
  i64 row = 0;
  for (i64 g = 0; g < groups.count(); ++g) {
    for (i64 i = 0; i < groups.rows[static_cast<std::size_t>(g)]; ++i) f(g, row++);
  }
}

TEST_P(GroupedMatmulOpsTest, MultipliesEachGroupByItsMatrix) {
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

TEST_P(GroupedMatmulOpsTest, ComputesGradientOfEachMatrix) {
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

/// Calls f(device) for each path on which this CPU multiplies bf16, and once for other types.
template <class F>
void for_each_path(DType type, const F& f) {
  using kernel::Bf16Path;
  for (const Bf16Path path : {Bf16Path::Widen, Bf16Path::Dots, Bf16Path::Amx}) {
    if (path != Bf16Path::Widen && (type != DType::BF16 || !kernel::can_use(path))) continue;
    SCOPED_TRACE(str("path ", static_cast<int>(path)));
    CpuDevice device({.threads = 2});
    device.gemm_cache().bf16_path = path;
    f(device);
  }
}

/// A single row, and the same row among few and among many, at the start of a group and later, must be bitwise
/// identical.
TEST_P(GroupedMatmulOpsTest, RowIsIndependentOfItsGroup) {
  if (dtype() == DType::F64) GTEST_SKIP() << "its GEMMs are simple loops, and slow";
  for (const auto& [n, k] : std::vector<std::pair<i64, i64>>{{257, 200}, {64, 768}, {100, 1030}}) {
    const std::vector<i64> sizes{1, 7, 64, 200, 0, 16, 600};
    const i64 all = std::accumulate(sizes.begin(), sizes.end(), i64{0}), groups = static_cast<i64>(sizes.size());
    const Numbers row = normals(k, 1), w = normals(n * k, 2);
    Numbers x, weights;
    for (i64 i = 0; i < all; ++i) x.insert(x.end(), row.begin(), row.end());
    for (i64 g = 0; g < groups; ++g) weights.insert(weights.end(), w.begin(), w.end());
    for (const bool transpose : {true, false}) {
      const auto check = [&](Device& device) {
        Tensor y = garbage({all, n}, dtype(), device);
        const Shape shape{groups, transpose ? n : k, transpose ? k : n};
        ops::grouped_matmul(tensor_of(x, {all, k}, dtype(), device), tensor_of(weights, shape, dtype(), device), sizes,
                            y, transpose);
        const std::vector<std::byte> bytes = bytes_of(y);
        const std::size_t length = bytes.size() / static_cast<std::size_t>(all);
        for (i64 i = 1; i < all; ++i) {
          ASSERT_TRUE(std::equal(bytes.begin(), bytes.begin() + length, bytes.begin() + i * length))
              << "row " << i << ", " << n << " x " << k;
        }
      };
      if (target().device == DeviceType::Cpu)
        for_each_path(dtype(), check);
      else
        check(any_device());
      if (HasFailure()) return;
    }
  }
}

/// Returns the GEMMs of groups of rows in both directions and the gradients of their matrices, all as bytes.
std::vector<std::vector<std::byte>> products_of(const Groups& groups, DType type, Device& device) {
  const i64 n = groups.n, k = groups.k, all = groups.all();
  const Tensor x = tensor_of(normals(all * k, 1), {all, k}, type, device);
  const Tensor dy = tensor_of(normals(all * n, 2), {all, n}, type, device);
  const Shape shape{groups.count(), n, k};
  const Tensor w = tensor_of(normals(groups.count() * n * k, 3), shape, type, device);
  Tensor y = garbage({all, n}, type, device), dx = garbage({all, k}, type, device);
  ops::grouped_matmul(x, w, groups.rows, y, true);
  ops::grouped_matmul(dy, w, groups.rows, dx, false);
  std::vector<std::vector<std::byte>> bytes{bytes_of(y), bytes_of(dx)};
  const DType wide = is_low_precision(type) ? DType::F32 : type;
  for (const float beta : {0.0f, 1.0f}) {
    Tensor dw =
        beta == 0 ? garbage(shape, wide, device) : tensor_of(test::normals(numel(shape), 4, wide), shape, wide, device);
    ops::grouped_weight_gradient(dy, x, groups.rows, dw, beta);
    bytes.push_back(bytes_of(dw));
  }
  return bytes;
}

/// Returns the part [begin, end) of a combined result that belongs to one group.
std::vector<std::byte> group_part(const std::vector<std::byte>& bytes, i64 begin, i64 end, i64 total) {
  const auto at = [&](i64 i) { return bytes.begin() + static_cast<i64>(bytes.size()) / total * i; };
  return {at(begin), at(end)};
}

/// Results must depend neither on the number of threads nor on the contents of other groups.
TEST_P(GroupedMatmulOpsTest, IsIndependentOfThreadsAndOtherGroups) {
  if (dtype() == DType::F64 || target().device != DeviceType::Cpu) GTEST_SKIP() << "applies to the CPU's kernels only";
  for (const Groups& groups : std::vector<Groups>{{{0, 1, 70, 0, 130, 13}, 129, 50},
                                                  {{64, 65, 0, 1}, 520, 200},
                                                  {{70, 0, 150}, 320, 384},
                                                  {{0, 0, 900, 0}, 48, 96},
                                                  {{1}, 33, 1030}}) {
    for (const kernel::Bf16Path path : {kernel::Bf16Path::Widen, kernel::Bf16Path::Dots, kernel::Bf16Path::Amx}) {
      if (path != kernel::Bf16Path::Widen && (dtype() != DType::BF16 || !kernel::can_use(path))) continue;
      const auto on = [&](const Groups& all, int threads) {
        CpuDevice device({.threads = threads});
        device.gemm_cache().bf16_path = path;
        return products_of(all, dtype(), device);
      };
      const auto one = on(groups, 1);
      for (const int threads : {2, 3}) EXPECT_EQ(on(groups, threads), one) << threads << " threads";
      // Each group keeps its index among the weights when the others are emptied.
      i64 first = 0;
      for (i64 g = 0; g < groups.count(); ++g) {
        const i64 rows = groups.rows[static_cast<std::size_t>(g)];
        Groups only_group = groups;
        for (i64 i = 0; i < groups.count(); ++i)
          only_group.rows[static_cast<std::size_t>(i)] = i == g ? groups.rows[i] : 0;
        if (first == 0 && rows > 0) {  // its rows then have the same values
          const auto single = on(only_group, 2);
          for (std::size_t i = 0; i < 2; ++i)
            EXPECT_EQ(group_part(one[i], 0, rows, groups.all()), single[i]) << "group " << g;
          for (std::size_t i = 2; i < 4; ++i)
            EXPECT_EQ(group_part(one[i], g, g + 1, groups.count()), group_part(single[i], g, g + 1, groups.count()))
                << "group " << g;
        }
        first += rows;
      }
      if (HasFailure()) return;
    }
  }
}

TEST(GroupedMatmulTest, RejectsMismatchedShapes) {
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
