#include <limits>

#include "tests/support/ops.h"

namespace mcpp::test::optimizer_test {
namespace {

class OptimizerOpsTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, OptimizerOpsTest, every_type(), ops_name);

constexpr i64 kCounts[]{0, 1, 17, 1023, 50000};

/// Master weights for a model of each type; the test parameter is the model's type.
TEST_P(OptimizerOpsTest, AdamWMatchesFormula) {
  const AdamWStep step{
      .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = 3, .grad_scale = 0.5};
  for (const i64 count : kCounts) {
    const Numbers w0 = test::normals(count, 1, accumulate_dtype()),
                  m0 = test::normals(count, 2, accumulate_dtype(), 0.1),
                  grad = test::normals(count, 3, accumulate_dtype());
    Numbers v0 = test::normals(count, 4, accumulate_dtype(), 0.1);
    for (double& v : v0) v = rounded(v * v, accumulate_dtype());
    const auto outputs = run([&](Device& device) {
      Tensor w = tensor_of(w0, {count}, accumulate_dtype(), device),
             m = tensor_of(m0, {count}, accumulate_dtype(), device),
             v = tensor_of(v0, {count}, accumulate_dtype(), device),
             master_only = tensor_of(w0, {count}, accumulate_dtype(), device);
      const Tensor g = tensor_of(grad, {count}, accumulate_dtype(), device);
      Tensor model = garbage({count}, dtype(), device);
      ops::adamw(w, m, v, g, step, &model);
      Tensor m2 = tensor_of(m0, {count}, accumulate_dtype(), device),
             v2 = tensor_of(v0, {count}, accumulate_dtype(), device);
      ops::adamw(master_only, m2, v2, g, step, nullptr);
      return std::vector{w, m, v, model, master_only, tensor_of(to_doubles(w), {count}, dtype(), device)};
    });
    Numbers w = w0, m = m0, v = v0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      const double g = grad[i] * step.grad_scale;
      m[i] = step.beta1 * m[i] + (1 - step.beta1) * g;
      v[i] = step.beta2 * v[i] + (1 - step.beta2) * g * g;
      const double mhat = m[i] / (1 - std::pow(step.beta1, 3)), vhat = v[i] / (1 - std::pow(step.beta2, 3));
      w[i] -= step.lr * (mhat / (std::sqrt(vhat) + step.eps) + step.weight_decay * w[i]);
    }
    expect_close(outputs[0], w, tolerance(accumulate_dtype()), 1, "weights");
    expect_close(outputs[1], m, tolerance(accumulate_dtype()), 0.1, "m");
    expect_close(outputs[2], v, 2 * tolerance(accumulate_dtype()), 0, "v");
    EXPECT_TRUE(same_bits(outputs[3], outputs[5])) << "the model's weights are the rounded master weights";
    EXPECT_TRUE(same_bits(outputs[0], outputs[4]));
  }
}

TEST_P(OptimizerOpsTest, SgdMatchesFormula) {
  const SgdStep step{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .grad_scale = 2};
  for (const i64 count : kCounts) {
    const Numbers w0 = test::normals(count, 1, accumulate_dtype()), b0 = test::normals(count, 2, accumulate_dtype()),
                  grad = test::normals(count, 3, accumulate_dtype());
    const auto outputs = run([&](Device& device) {
      Tensor w = tensor_of(w0, {count}, accumulate_dtype(), device),
             buffer = tensor_of(b0, {count}, accumulate_dtype(), device);
      Tensor model = garbage({count}, dtype(), device);
      ops::sgd(w, buffer, tensor_of(grad, {count}, accumulate_dtype(), device), step, &model);
      return std::vector{w, buffer, model, tensor_of(to_doubles(w), {count}, dtype(), device)};
    });
    Numbers w = w0, buffer = b0;
    for (std::size_t i = 0; i < w.size(); ++i) {
      buffer[i] = step.momentum * buffer[i] + (grad[i] * step.grad_scale + step.weight_decay * w[i]);
      w[i] -= step.lr * buffer[i];
    }
    expect_close(outputs[0], w, tolerance(accumulate_dtype()), 1, "weights");
    expect_close(outputs[1], buffer, tolerance(accumulate_dtype()), 1, "momentum");
    EXPECT_TRUE(same_bits(outputs[2], outputs[3]));
  }
}

TEST_P(OptimizerOpsTest, MomentumMatchesFormula) {
  for (const i64 count : kCounts) {
    for (const bool nesterov : {false, true}) {
      const Numbers b0 = test::normals(count, 2, accumulate_dtype()), g0 = test::normals(count, 3, accumulate_dtype());
      const auto outputs = run([&](Device& device) {
        Tensor buffer = tensor_of(b0, {count}, accumulate_dtype(), device),
               grad = tensor_of(g0, {count}, accumulate_dtype(), device);
        const Tensor factor = tensor_of({0.25}, {1}, DType::F64, device);
        ops::momentum(buffer, grad, {.momentum = 0.95, .nesterov = nesterov, .factor = factor});
        return std::vector{buffer, grad};
      });
      Numbers buffer = b0, direction = g0;
      for (std::size_t i = 0; i < buffer.size(); ++i) {
        const double g = 0.25 * g0[i];
        buffer[i] = 0.95 * buffer[i] + g;
        direction[i] = nesterov ? g + 0.95 * buffer[i] : buffer[i];
      }
      expect_close(outputs[0], buffer, tolerance(accumulate_dtype()), 1, "momentum");
      expect_close(outputs[1], direction, tolerance(accumulate_dtype()), 1, "direction");
    }
  }
}

TEST_P(OptimizerOpsTest, ApplyUpdateMatchesFormula) {
  for (const i64 count : kCounts) {
    const Numbers w0 = test::normals(count, 1, accumulate_dtype()),
                  direction = test::normals(count, 3, accumulate_dtype());
    const auto outputs = run([&](Device& device) {
      Tensor w = tensor_of(w0, {count}, accumulate_dtype(), device), model = garbage({count}, dtype(), device);
      ops::apply_update(w, tensor_of(direction, {count}, accumulate_dtype(), device), {.lr = 0.1, .weight_decay = 0.01},
                        &model);
      return std::vector{w, model, tensor_of(to_doubles(w), {count}, dtype(), device)};
    });
    Numbers w = w0;
    for (std::size_t i = 0; i < w.size(); ++i) w[i] -= 0.1 * (direction[i] + 0.01 * w[i]);
    expect_close(outputs[0], w, tolerance(accumulate_dtype()), 1, "weights");
    EXPECT_TRUE(same_bits(outputs[1], outputs[2]));
  }
}

TEST_P(OptimizerOpsTest, MomentumAndApplyUpdateChangeNothingWhenFactorIsNotFinite) {
  const auto outputs = run([&](Device& device) {
    Tensor buffer = tensor_of({1, 2}, {2}, accumulate_dtype(), device),
           grad = tensor_of({3, 4}, {2}, accumulate_dtype(), device),
           w = tensor_of({5, 6}, {2}, accumulate_dtype(), device);
    const Tensor factor = tensor_of({std::numeric_limits<double>::infinity()}, {1}, DType::F64, device);
    ops::momentum(buffer, grad, {.momentum = 0.9, .factor = factor});
    ops::apply_update(w, grad, {.lr = 1, .factor = factor}, nullptr);
    return std::vector{buffer, w};
  });
  EXPECT_EQ(to_doubles(outputs[0]), (Numbers{1, 2}));
  EXPECT_EQ(to_doubles(outputs[1]), (Numbers{5, 6}));
}

TEST_P(OptimizerOpsTest, NormalizeDividesByNorm) {
  for (const i64 count : kCounts) {
    const Numbers x0 = test::normals(count, 1, dtype());
    const auto outputs = run([&](Device& device) {
      Tensor x = tensor_of(x0, {count}, dtype(), device);
      ops::normalize(x, tensor_of({16}, {1}, DType::F64, device), 1e-7);
      return std::vector{x};
    });
    Numbers x = x0;
    for (double& v : x) v /= 4 + 1e-7;
    // Below 2^-14 the step of fp16 is 2^-24; the direction in which ties round depends on rounding in fp32.
    const double min_magnitude = dtype() == DType::F16 ? 1.001 * 0x1p-14 : 0;
    expect_close(outputs[0], x, tolerance(dtype()), min_magnitude, "x");
  }
}

TEST_P(OptimizerOpsTest, PropagateNaN) {
  Device& device = any_device();
  Tensor w = Tensor::zeros({3}, accumulate_dtype(), device), m = Tensor::zeros({3}, accumulate_dtype(), device),
         v = Tensor::zeros({3}, accumulate_dtype(), device), model = Tensor::zeros({3}, dtype(), device);
  ops::adamw(w, m, v, tensor_of({1, std::nan(""), 1}, {3}, accumulate_dtype(), device), {.lr = 1e-3}, &model);
  EXPECT_TRUE(std::isnan(to_doubles(w)[1]) && std::isnan(to_doubles(model)[1]) && std::isfinite(to_doubles(w)[0]));
}

TEST(OptimizerDtypeTest, RejectsModelDtypeOfHigherPrecisionThanMasterWeights) {
  CpuDevice device;
  Tensor w = Tensor::zeros({3}, DType::F32, device), m = Tensor::zeros({3}, DType::F32, device),
         v = Tensor::zeros({3}, DType::F32, device), model = Tensor::zeros({3}, DType::F64, device);
  EXPECT_THROW(ops::adamw(w, m, v, Tensor::zeros({3}, DType::F32, device), {}, &model), Error);
}

}  // namespace
}  // namespace mcpp::test::optimizer_test
