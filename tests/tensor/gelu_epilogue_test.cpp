#include "tensor/ops/fused/gelu_epilogue.h"

#include "tests/support/ops.h"

namespace mcpp::test {
namespace {

class GeluEpilogueOpsTest : public Ops {};

/// On a GPU only aligned tensors support epilogues.
std::vector<OpsTarget> targets_with_epilogues() {
  std::vector<OpsTarget> targets = all_targets();
  std::erase_if(targets,
                [](const OpsTarget& target) { return target.device == DeviceType::Cuda && target.first != 0; });
  return targets;
}
INSTANTIATE_TEST_SUITE_P(LowPrecision, GeluEpilogueOpsTest,
                         testing::Combine(testing::Values(DType::BF16, DType::F16),
                                          testing::ValuesIn(targets_with_epilogues())),
                         ops_name);

/// Returns the tanh approximation of GELU and its slope.
std::pair<double, double> gelu(double x) {
  const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return {x * (1 + t) / 2, (1 + t) / 2 + x * (1 - t * t) / 2 * c * (1 + 3 * 0.044715 * x * x)};
}

/// Returns a b^T or, with `plain`, a b.
Numbers product(const Numbers& a, const Numbers& b, i64 m, i64 n, i64 k, bool plain) {
  Numbers c(static_cast<std::size_t>(m * n));
  for (i64 i = 0; i < m; ++i)
    for (i64 j = 0; j < n; ++j)
      for (i64 l = 0; l < k; ++l) c[i * n + j] += a[i * k + l] * (plain ? b[l * n + j] : b[j * k + l]);
  return c;
}

TEST_P(GeluEpilogueOpsTest, MatchDoublePrecision) {
  struct Sizes {
    i64 rows, f, h;
  };
  for (const Sizes& size : {Sizes{24, 64, 32}, Sizes{130, 256, 64}, Sizes{1, 8, 8}, Sizes{0, 16, 8}}) {
    const i64 rows = size.rows, f = size.f, h = size.h;
    const Numbers x = normals(rows * h, 1), w = normals(f * h, 2, 1 / std::sqrt(static_cast<double>(h))),
                  bias = normals(f, 3), dy = normals(rows * h, 4),
                  v = normals(h * f, 5, 1 / std::sqrt(static_cast<double>(h))), at = normals(rows * f, 6, 2);
    const auto outputs = run([&](Device& device) {
      const auto put = [&](const Numbers& n, const Shape& shape) { return tensor_of(n, shape, dtype(), device); };
      const Tensor a = put(x, {rows, h}), b = put(w, {f, h}), c = put(bias, {f});
      std::vector<Tensor> all;
      for (int i = 0; i < 5; ++i) all.push_back(garbage({rows, f}, dtype(), device));
      ops::matmul_gelu(a, b, &c, all[0], all[1]);
      ops::matmul_gelu(a, b, nullptr, all[2], all[3]);
      ops::matmul_gelu_backward(put(dy, {rows, h}), put(v, {h, f}), put(at, {rows, f}), all[4]);
      return all;
    });
    const Numbers plain = product(x, w, rows, f, h, false), d = product(dy, v, rows, f, h, true);
    // Intermediate rounding in separate ops counts relative to its own magnitude; the slope of GELU never exceeds
    // kSteepest.
    constexpr double kSteepest = 1.13, kSums = 1e-5;
    const auto expect = [&](const Tensor& output, const char* what, const auto& truth, const auto& rounded) {
      const Numbers actual = to_doubles(output);
      for (std::size_t i = 0; i < actual.size(); ++i) {
        const double limit = tolerance(dtype()) * (rounded(i) + std::abs(truth(i))) + kSums;
        ASSERT_NEAR(actual[i], truth(i), limit) << what << " " << i;
      }
    };
    const auto biased = [&](std::size_t i) { return plain[i] + bias[i % static_cast<std::size_t>(f)]; };
    const auto unbiased = [&](std::size_t i) { return plain[i]; };
    const auto intermediate_magnitude = [&](std::size_t i) { return std::abs(plain[i]) + std::abs(biased(i)); };
    expect(outputs[0], "u", biased, [&](std::size_t i) { return std::abs(plain[i]); });
    expect(
        outputs[1], "y", [&](std::size_t i) { return gelu(biased(i)).first; },
        [&](std::size_t i) { return kSteepest * intermediate_magnitude(i); });
    expect(outputs[2], "u without bias", unbiased, [](std::size_t) { return 0; });
    expect(
        outputs[3], "y without bias", [&](std::size_t i) { return gelu(plain[i]).first; },
        [&](std::size_t i) { return kSteepest * std::abs(plain[i]); });
    expect(
        outputs[4], "du", [&](std::size_t i) { return d[i] * gelu(at[i]).second; },
        [&](std::size_t i) { return kSteepest * std::abs(d[i]); });
  }
}

TEST(GeluEpilogueTest, RejectsMismatchedShapes) {
  CpuDevice device;
  const auto zeros = [&](const Shape& shape, DType t = DType::F32) { return Tensor::zeros(shape, t, device); };
  const Tensor x = zeros({4, 8}), w = zeros({16, 8}), bias = zeros({16}), dy = zeros({4, 2}), v = zeros({2, 16});
  Tensor u = zeros({4, 16}), y = zeros({4, 16}), other = zeros({4, 8}), narrow = zeros({4, 16}, DType::BF16);
  EXPECT_NO_THROW(ops::matmul_gelu(x, w, &bias, u, y));
  EXPECT_THROW(ops::matmul_gelu(x, w, &x, u, y), Error);
  EXPECT_THROW(ops::matmul_gelu(x, w, &bias, other, y), Error);
  EXPECT_THROW(ops::matmul_gelu(x, w, &bias, u, narrow), Error);
  EXPECT_NO_THROW(ops::matmul_gelu_backward(dy, v, u, y));
  EXPECT_THROW(ops::matmul_gelu_backward(dy, v, u, u), Error);
  EXPECT_THROW(ops::matmul_gelu_backward(dy, w, u, y), Error);
  EXPECT_THROW(ops::matmul_gelu_backward(dy, v, narrow, y), Error);
}

}  // namespace
}  // namespace mcpp::test
