#include "tests/support/gradcheck.h"
#include "tests/support/ops.h"

namespace mcpp::test {
namespace {

class ActivationOpsTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, ActivationOpsTest, every_type(), ops_name);

constexpr Activation kActivations[]{Activation::Gelu,   Activation::GeluErf, Activation::SquaredRelu,
                                    Activation::SwiGlu, Activation::GeGlu,   Activation::QuickGeGlu};
const ActivationRule kLimitedActivations[]{
    {Activation::SwiGlu, 1.5, 0}, {Activation::GeGlu, 0, -0.75}, {Activation::QuickGeGlu, 2.125, 1}};

/// Returns the value of the activation function at x.
double value_of(Activation a, double x) {
  switch (a) {
    case Activation::Gelu:
    case Activation::GeGlu:
      return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::GeluErf:
      return x * std::erfc(-x / std::sqrt(2)) / 2;
    case Activation::SquaredRelu:
      return x > 0 ? x * x : 0;
    case Activation::SwiGlu:
      return x / (1 + std::exp(-x));
    case Activation::QuickGeGlu:
      return x / (1 + std::exp(-1.702 * x));
  }
  return 0;
}
double slope_of(Activation a, double x) {
  switch (a) {
    case Activation::Gelu:
    case Activation::GeGlu: {
      const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (x + 0.044715 * x * x * x));
      return (1 + t) / 2 + x * (1 - t * t) / 2 * c * (1 + 3 * 0.044715 * x * x);
    }
    case Activation::GeluErf:
      return std::erfc(-x / std::sqrt(2)) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
    case Activation::SquaredRelu:
      return x > 0 ? 2 * x : 0;
    case Activation::SwiGlu: {
      const double s = 1 / (1 + std::exp(-x));
      return s + x * s * (1 - s);
    }
    case Activation::QuickGeGlu: {
      const double s = 1 / (1 + std::exp(-1.702 * x));
      return s + 1.702 * x * s * (1 - s);
    }
  }
  return 0;
}

struct Expected {
  Numbers y, dx;
};
Expected reference(const ActivationRule& rule, const Numbers& x, const Numbers& bias, const Numbers& dy, i64 rows,
                   i64 f) {
  const Activation a = rule.function;
  const double limit = rule.clamp > 0 ? rule.clamp : HUGE_VAL;
  const i64 width = is_gated(a) ? 2 * f : f;
  Expected result{Numbers(dy.size()), Numbers(x.size())};
  for (i64 r = 0; r < rows; ++r) {
    for (i64 i = 0; i < f; ++i) {
      const auto at = [&](i64 column) { return x[r * width + column] + (bias.empty() ? 0 : bias[column]); };
      const double raw_up = is_gated(a) ? at(f + i) : 1, g = dy[r * f + i];
      const double gate = is_gated(a) ? std::min(at(i), limit) : at(i);
      const double up = is_gated(a) ? std::clamp(raw_up, -limit, limit) + rule.up_offset : 1;
      result.y[r * f + i] = value_of(a, gate) * up;
      result.dx[r * width + i] = gate == at(i) ? g * up * slope_of(a, gate) : 0;
      if (is_gated(a)) result.dx[r * width + f + i] = std::abs(raw_up) <= limit ? g * value_of(a, gate) : 0;
    }
  }
  return result;
}

TEST_P(ActivationOpsTest, MatchesReferenceInForwardAndBackward) {
  std::vector<ActivationRule> rules(std::begin(kActivations), std::end(kActivations));
  rules.insert(rules.end(), std::begin(kLimitedActivations), std::end(kLimitedActivations));
  for (const ActivationRule& a : rules) {
    for (const auto [rows, f] : kSizes) {
      const i64 width = is_gated(a.function) ? 2 * f : f;
      const Numbers x = normals(rows * width, 1, 3), bias = normals(width, 2), dy = normals(rows * f, 3);
      const auto outputs = run([&](Device& device) {
        const Tensor t = tensor_of(x, {rows, width}, dtype(), device), b = tensor_of(bias, {width}, dtype(), device),
                     g = tensor_of(dy, {rows, f}, dtype(), device);
        Tensor y = garbage({rows, f}, dtype(), device), biased = Tensor::like(y);
        ops::activation(a, t, nullptr, y);
        ops::activation(a, t, &b, biased);
        Tensor dx = garbage({rows, width}, dtype(), device), in_place = tensor_of(x, {rows, width}, dtype(), device);
        ops::activation_backward(a, g, t, nullptr, dx);
        ops::activation_backward(a, g, in_place, &b, in_place);
        return std::vector{y, biased, dx, in_place};
      });
      const std::string name = str("activation ", static_cast<int>(a.function), a.is_limited() ? " with limits" : "");
      const Expected plain = reference(a, x, {}, dy, rows, f), biased = reference(a, x, bias, dy, rows, f);
      // In fp32 the slope is limited by the rounding of arguments around 10.
      const double factor = is_low_precision(dtype()) ? 1 : 8;
      expect_close(outputs[0], plain.y, name + " y", factor);
      expect_close(outputs[1], biased.y, name + " y with bias", factor);
      expect_close(outputs[2], plain.dx, name + " dx", factor);
      expect_close(outputs[3], biased.dx, name + " dx with bias", factor);
    }
  }
}

TEST_P(ActivationOpsTest, IsAccurateForExtremeInputs) {
  const double largest = dtype() == DType::F16 ? 65504 : std::numeric_limits<float>::max();
  for (const Activation a : kActivations) {
    Numbers x;
    for (double magnitude : {1e-30, 1e-8, 1e-3, 5.0, 13.0, 40.0, 87.0, 88.0, 90.0, 105.0, 800.0, 1e6})
      for (double sign : {-1.0, 1.0}) x.push_back(rounded(sign * std::min(magnitude, largest), dtype()));
    const i64 count = static_cast<i64>(x.size());
    Numbers input = x;
    if (is_gated(a)) input.insert(input.end(), x.size(), 1.0);
    const auto outputs = run([&](Device& device) {
      Tensor y = garbage({1, count}, dtype(), device);
      ops::activation(a, tensor_of(input, {1, static_cast<i64>(input.size())}, dtype(), device), nullptr, y);
      return std::vector{y};
    });
    Numbers expected;
    for (double v : x) expected.push_back(value_of(a, v) > largest ? INFINITY : value_of(a, v));
    expect_close(outputs[0], expected, str("activation ", static_cast<int>(a)));
  }
}

TEST_P(ActivationOpsTest, PropagatesNaN) {
  for (const Activation a : kActivations) {
    const Numbers x{std::nan(""), 1, 2, std::nan("")};
    const auto outputs = run([&](Device& device) {
      const i64 width = is_gated(a) ? 2 : 4, f = is_gated(a) ? 1 : 4;
      const Tensor t = tensor_of(x, {4 / width, width}, dtype(), device);
      const Tensor dy = tensor_of(Numbers(4 / width * f, 1.0), {4 / width, f}, dtype(), device);
      Tensor y = Tensor::like(dy), dx = Tensor::like(t);
      ops::activation(a, t, nullptr, y);
      ops::activation_backward(a, dy, t, nullptr, dx);
      return std::vector{y, dx};
    });
    const Numbers y = to_doubles(outputs[0]), dx = to_doubles(outputs[1]);
    EXPECT_TRUE(std::isnan(y.front()) && std::isnan(y.back()) && std::isnan(dx.front()));
  }
}

TEST_P(ActivationOpsTest, SigmoidGateMatchesReferenceInForwardAndBackward) {
  for (const auto [rows, f] : kSizes) {
    const i64 count = rows * f;
    const Numbers x = normals(count, 1), gate = normals(count, 2, 3), dy = normals(count, 3);
    const auto outputs = run([&](Device& device) {
      const auto make = [&](const Numbers& values) { return tensor_of(values, {rows, f}, dtype(), device); };
      const Tensor tx = make(x), tg = make(gate), tdy = make(dy);
      Tensor y = garbage({rows, f}, dtype(), device), dx = Tensor::like(y), d_gate = Tensor::like(y);
      ops::sigmoid_gate(tx, tg, y);
      ops::sigmoid_gate_backward(tdy, tx, tg, dx, d_gate);
      Tensor dy_to_dx = make(dy), gate_to_d_gate = make(gate);
      ops::sigmoid_gate_backward(dy_to_dx, tx, gate_to_d_gate, dy_to_dx, gate_to_d_gate);
      return std::vector{y, dx, d_gate, dy_to_dx, gate_to_d_gate};
    });
    Numbers y(x.size()), dx(x.size()), d_gate(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double s = 1 / (1 + std::exp(-gate[i]));
      y[i] = x[i] * s, dx[i] = dy[i] * s, d_gate[i] = dy[i] * x[i] * s * (1 - s);
    }
    const double factor = is_low_precision(dtype()) ? 1 : 8;
    expect_close(outputs[0], y, "sigmoid_gate y", factor);
    for (const std::size_t first : {1, 3}) {
      expect_close(outputs[first], dx, "sigmoid_gate dx", factor);
      expect_close(outputs[first + 1], d_gate, "sigmoid_gate d_gate", factor);
    }
  }
}

TEST(ActivationGradientTest, MatchesFiniteDifferences) {
  CpuDevice device;
  for (const Activation a : kActivations) {
    const i64 rows = 4, f = 21, width = is_gated(a) ? 2 * f : f;
    const auto random = [&](Shape shape, u64 seed) { return random_tensor(shape, DType::F64, device, seed); };
    const Tensor x = random({rows, width}, 1), bias = random({width}, 2), dy = random({rows, f}, 3);
    Tensor y = Tensor::like(dy), dx = Tensor::like(x), db = Tensor::like(bias);
    const auto forward = [&] {
      ops::activation(a, x, &bias, y);
      return dot(y, dy);
    };
    ops::activation_backward(a, dy, x, &bias, dx);
    ops::column_sum(dx, db, 0);
    expect_gradient(forward, x, dx, str("activation ", static_cast<int>(a), " dx"));
    expect_gradient(forward, bias, db, str("activation ", static_cast<int>(a), " dbias"));
  }
}

}  // namespace
}  // namespace mcpp::test
