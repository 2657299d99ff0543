#include "tensor/ops/low_precision/fp8.h"

#include <array>
#include <limits>
#include <set>

#include "tests/support/errors.h"
#include "tests/support/fp8.h"
#include "tests/support/ops.h"

namespace mcpp::test {
namespace {

constexpr Fp8Format kFormats[]{Fp8Format::E4M3, Fp8Format::E5M2};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Fp8Test, FormatsHaveDefinedValues) {
  const std::vector<double> e4m3 = fp8_values(Fp8Format::E4M3), e5m2 = fp8_values(Fp8Format::E5M2);
  EXPECT_EQ(e4m3.size(), 127u);
  EXPECT_EQ(e5m2.size(), 124u);
  EXPECT_EQ(e4m3[1], 0x1p-9);
  EXPECT_EQ(e5m2[1], 0x1p-16);
  for (const Fp8Format format : kFormats) EXPECT_EQ(fp8_max(format), fp8_values(format).back());
}

/// Uses the largest power of two that keeps the largest value in range.
TEST(Fp8Test, ScaleIsLargestPowerOfTwoThatFits) {
  for (const Fp8Format format : kFormats) {
    const double largest = fp8_max(format);
    Numbers magnitudes{448, std::nextafter(448.F, 500.F), 57344, 57345, 1, 1.75, 1.7500001, 3e38, 1e-25, 1e-29};
    for (u64 i = 0; i < 1000; ++i) magnitudes.push_back(std::exp(20 * philox_normal(7, static_cast<i64>(i))));
    for (const double magnitude : magnitudes) {
      const auto amax = static_cast<float>(magnitude);
      if (!std::isfinite(amax)) continue;
      const double scale = fp8_scale(format, amax);
      int exponent = 0;
      EXPECT_EQ(std::frexp(scale, &exponent), 0.5) << amax;
      EXPECT_LE(amax * scale, largest);
      if (exponent - 1 < kMaxFp8ScaleExponent) {
        EXPECT_GT(2 * amax * scale, largest);
      }
    }
    for (const float small : {0.F, 1e-45F, 1e-38F, 1e-33F}) EXPECT_EQ(fp8_scale(format, small), 0x1p100F);
    for (const float none : {kInfinity, std::nanf("")}) EXPECT_TRUE(std::isnan(fp8_scale(format, none)));
  }
}

class Fp8OpsTest : public Ops {
 protected:
  Tensor amax_of(double amax, Device& device) const { return tensor_of({amax}, {1}, DType::F32, device); }
  Tensor rounded(const Numbers& x, Fp8Format format, double amax, Device& device) const {
    const Shape shape{static_cast<i64>(x.size())};
    const Tensor from = tensor_of(x, shape, DType::BF16, device);
    Tensor y = garbage(shape, DType::BF16, device);
    ops::round_to_fp8(from, {format, amax_of(amax, device)}, y);
    return y;
  }
};

INSTANTIATE_TEST_SUITE_P(Types, Fp8OpsTest,
                         testing::Combine(testing::Values(DType::BF16), testing::ValuesIn(all_targets())), ops_name);

/// Covers all 65536 values, including every fp8 value, every midpoint of two and its neighbors.
TEST_P(Fp8OpsTest, RoundsEveryBf16ValueToNearest) {
  Numbers x;
  for (u32 bits = 0; bits < 0x10000; ++bits) x.push_back(std::bit_cast<float>(bits << 16));
  for (const Fp8Format format : kFormats) {
    const Numbers y = to_doubles(run([&](Device& device) {
      return std::vector{rounded(x, format, fp8_max(format), device)};  // a scale of 1
    })[0]);
    std::set<double> results;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = nearest_fp8(format, x[i]);
      ASSERT_TRUE(y[i] == expected || (std::isnan(y[i]) && std::isnan(expected)))
          << x[i] << " became " << y[i] << ", not " << expected;
      EXPECT_EQ(std::signbit(y[i]) && !std::isnan(y[i]), std::signbit(expected) && !std::isnan(expected)) << x[i];
      if (!std::isnan(y[i])) results.insert(y[i]);
    }
    EXPECT_EQ(results.size(), 2 * fp8_values(format).size() - 1) << "0 and -0 are the same";
  }
}

TEST_P(Fp8OpsTest, RoundsRelativeToScale) {
  const Numbers x = normals(3000, 1, 1e-3);
  for (const Fp8Format format : kFormats) {
    for (const double amax : {1e-5, 3e-3, 0.01, 17.0, 1e20}) {
      const std::vector<Tensor> y = run([&](Device& device) { return std::vector{rounded(x, format, amax, device)}; });
      expect_close(y[0], in_fp8(x, format, amax), 0, 0, str("amax ", amax));
    }
  }
}

TEST_P(Fp8OpsTest, AmaxIsLargestMagnitude) {
  for (const i64 count : {1, 3, 17, 64, 1000, 16384, 50001}) {
    Numbers x = normals(count, 2);
    x[static_cast<std::size_t>(count - 1)] = -9.5;
    const std::vector<Tensor> found = run([&](Device& device) {
      std::vector<Tensor> amax{amax_of(0, device), amax_of(100, device)};
      for (Tensor& a : amax) ops::add_amax(tensor_of(x, {count}, DType::BF16, device), a);
      return amax;
    });
    EXPECT_EQ(to_doubles(found[0])[0], 9.5) << count;
    EXPECT_EQ(to_doubles(found[1])[0], 100) << "it is raised only";
  }
  Tensor amax = amax_of(2, any_device());
  ops::add_amax(tensor_of({}, {0}, DType::BF16, any_device()), amax);
  EXPECT_EQ(to_doubles(amax)[0], 2);
}

/// One non-finite value turns the entire tensor and its GEMMs into NaN, so that it is always noticed.
TEST_P(Fp8OpsTest, PropagatesNonFiniteValues) {
  for (const double none : {std::nan(""), double{kInfinity}, -double{kInfinity}}) {
    Numbers x = normals(16 * 16, 3);
    x[100] = none;
    const Tensor a = tensor_of(x, {16, 16}, DType::BF16, any_device());
    const Tensor b = tensor_of(normals(16 * 16, 4), {16, 16}, DType::BF16, any_device());
    Tensor amax = amax_of(0, any_device()), c = garbage({16, 16}, DType::F32, any_device());
    ops::add_amax(a, amax);
    EXPECT_EQ(to_doubles(amax)[0], kInfinity);
    ops::fp8_matmul(a, {Fp8Format::E5M2, amax}, b, {Fp8Format::E4M3, amax_of(4, any_device())}, c,
                    {.transpose_b = true});
    for (const double y : to_doubles(c)) EXPECT_TRUE(std::isnan(y));
  }
}

TEST_P(Fp8OpsTest, KeepsZeroTensors) {
  const Tensor zeros = tensor_of(Numbers(256, 0), {16, 16}, DType::BF16, any_device());
  Tensor amax = amax_of(0, any_device()), c = garbage({16, 16}, DType::BF16, any_device());
  ops::add_amax(zeros, amax);
  ops::fp8_matmul(zeros, {Fp8Format::E4M3, amax}, zeros, {Fp8Format::E4M3, amax}, c);
  for (const double y : to_doubles(c)) EXPECT_EQ(y, 0);
}

/// Sizes that a GPU supports, with partial tiles and partial vector loads.
constexpr std::array<i64, 3> kGemmSizes[]{{16, 16, 16}, {32, 48, 64}, {80, 16, 144}, {16, 112, 32}};

struct Gemm {
  i64 m, n, k;
  Fp8Format a, b;
  DType out;
  ops::MatmulOptions options;
};

/// Compares with fp64 GEMMs of operands rounded by the table of values. bf16 rounds the result; sums are in fp32.
void expect_gemm(const Gemm& p, const Numbers& a, const Numbers& b, const Numbers& before, const Tensor& c) {
  const Numbers x = in_fp8(a, p.a, largest_magnitude(a)), y = in_fp8(b, p.b, largest_magnitude(b)), got = to_doubles(c);
  const auto at = [](const Numbers& m, i64 i) { return m[static_cast<std::size_t>(i)]; };
  for (i64 i = 0; i < p.m; ++i) {
    for (i64 j = 0; j < p.n; ++j) {
      double sum = p.options.beta == 0 ? 0 : at(before, i * p.n + j), magnitude = std::abs(sum);
      for (i64 l = 0; l < p.k; ++l) {
        const double product = at(x, p.options.transpose_a ? l * p.m + i : i * p.k + l) *
                               at(y, p.options.transpose_b ? j * p.k + l : l * p.n + j);
        sum += product, magnitude += std::abs(product);
      }
      const double rounding = p.out == DType::BF16 ? std::abs(sum) / 256 : 0;
      ASSERT_NEAR(at(got, i * p.n + j), sum, rounding + 1e-6 * magnitude) << i << ", " << j;
    }
  }
}

TEST_P(Fp8OpsTest, GemmsMatchGemmsOfRoundedOperands) {
  std::vector<Gemm> gemms;
  for (const auto& [m, n, k] : kGemmSizes)
    for (const Fp8Format a : kFormats)
      for (const DType out : {DType::BF16, DType::F32})
        for (const bool transpose_a : {false, true})
          for (const bool transpose_b : {false, true})
            for (const float beta : {0.F, 1.F})
              gemms.push_back({m, n, k, a, Fp8Format::E4M3, out, {transpose_a, transpose_b, beta}});
  for (const Gemm& p : gemms) {
    const Numbers a = normals(p.m * p.k, 5, 1e-3), b = normals(p.k * p.n, 6, 30);
    const Numbers before = test::normals(p.m * p.n, 7, p.out, 1e-2);
    const std::vector<Tensor> c = run([&](Device& device) {
      const Shape a_shape = p.options.transpose_a ? Shape{p.k, p.m} : Shape{p.m, p.k};
      const Shape b_shape = p.options.transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n};
      Tensor result = p.options.beta == 0 ? test::garbage({p.m, p.n}, p.out, device, 0)
                                          : test::tensor_of(before, {p.m, p.n}, p.out, device, 0);
      ops::fp8_matmul(tensor_of(a, a_shape, DType::BF16, device), {p.a, amax_of(largest_magnitude(a), device)},
                      tensor_of(b, b_shape, DType::BF16, device), {p.b, amax_of(largest_magnitude(b), device)}, result,
                      p.options);
      return std::vector{result};
    });
    expect_gemm(p, a, b, before, c[0]);
    if (HasFailure()) return;
  }
}

TEST_P(Fp8OpsTest, RejectsInvalidOperands) {
  Device& device = any_device();
  const Tensor a = tensor_of(normals(256, 8), {16, 16}, DType::BF16, device);
  const Tensor wide = tensor_of(normals(256, 8), {16, 16}, DType::F32, device);
  Tensor c = garbage({16, 16}, DType::BF16, device), one = amax_of(1, device),
         two = tensor_of({1, 1}, {2}, DType::F32, device);
  const Fp8Scale e4m3{Fp8Format::E4M3, one}, e5m2{Fp8Format::E5M2, one};
  EXPECT_NE(error_of([&] { ops::fp8_matmul(a, e5m2, a, e5m2, c); }), "") << "of two gradients";
  EXPECT_NE(error_of([&] { ops::fp8_matmul(wide, e4m3, a, e4m3, c); }), "");
  EXPECT_NE(error_of([&] { ops::fp8_matmul(a, {Fp8Format::E4M3, two}, a, e4m3, c); }), "");
  EXPECT_NE(error_of([&] { ops::fp8_matmul(a, e4m3, a.slice(0, 8), e4m3, c); }), "");
  EXPECT_NE(error_of([&] { ops::add_amax(wide, one); }), "");
  EXPECT_NE(error_of([&] { ops::round_to_fp8(a, {}, c); }), "") << "without amax";
}

}  // namespace
}  // namespace mcpp::test
