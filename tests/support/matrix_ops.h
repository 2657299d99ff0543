// Fixture for ops on bf16 matrices that each test runs on one device: a CPU with three threads at an instruction level,
// or a GPU.
#pragma once
#include "tests/support/ops.h"

namespace mcpp::test {

class MatrixOps : public testing::TestWithParam<OpsTarget> {
 protected:
  void SetUp() override {
    if (const std::string why = why_missing(GetParam().device); !why.empty()) GTEST_SKIP() << why;
    if (!is_on_gpu()) hwy::SetSupportedTargetsForTest(GetParam().cpu_level);
    device_ = make_device(GetParam().device, 3);
  }
  void TearDown() override {
    if (!is_on_gpu()) hwy::SetSupportedTargetsForTest(0);
  }
  bool is_on_gpu() const { return GetParam().device == DeviceType::Cuda; }
  Device& device() { return *device_; }
  Tensor matrix(const Numbers& x, i64 columns, DType type = DType::BF16) {
    return tensor_of(x, {static_cast<i64>(x.size()) / columns, columns}, type, device(), GetParam().first);
  }
  Tensor empty_matrix(const Shape& shape, DType type = DType::BF16) {
    return garbage(shape, type, device(), GetParam().first);
  }
  Tensor amax_of(double amax) { return tensor_of({amax}, {1}, DType::F32, device()); }

  /// Result of a GEMM and its operands in row-major order.
  struct Product {
    i64 m, n, k;
    ops::MatmulOptions options;
    DType out;
  };
  /// Expects found = factor op(a) op(b) + beta before, computed in double precision, up to sums in fp32 and one
  /// rounding to the type of the output.
  static void expect_product(const Product& p, const Numbers& a, const Numbers& b, double factor, const Numbers& before,
                             const Tensor& c) {
    const auto at = [](const Numbers& x, i64 i) { return x[static_cast<std::size_t>(i)]; };
    const Numbers found = to_doubles(c);
    for (i64 i = 0; i < p.m; ++i) {
      for (i64 j = 0; j < p.n; ++j) {
        double sum = p.options.beta == 0 ? 0 : at(before, i * p.n + j), magnitude = std::abs(sum);
        for (i64 l = 0; l < p.k; ++l) {
          const double product = factor * at(a, p.options.transpose_a ? l * p.m + i : i * p.k + l) *
                                 at(b, p.options.transpose_b ? j * p.k + l : l * p.n + j);
          sum += product, magnitude += std::abs(product);
        }
        const double rounding = p.out == DType::BF16 ? std::abs(sum) / 256 : 0;
        ASSERT_NEAR(at(found, i * p.n + j), sum, rounding + 1e-6 * magnitude) << i << ", " << j;
      }
    }
  }

 private:
  std::unique_ptr<Device> device_;
};

inline std::string target_name(const testing::TestParamInfo<OpsTarget>& info) {
  return info.param.name();
}

/// GEMMs of the passes of a linear layer: y = x W^T, dx = dy W, dW += dy^T x.
inline constexpr ops::MatmulOptions kForwardPass{.transpose_b = true}, kDgradPass{},
    kWgradPass{.transpose_a = true, .beta = 1};

}  // namespace mcpp::test
