#include <cmath>

#include "tensor/ops/scan/gated_scan.h"
#include "tests/support/gradcheck.h"
#include "tests/support/ops.h"

namespace mcpp::test::short_conv_test {
namespace {

struct ConvCase {
  ScanShape shape;
  i64 seq, batch, taps;
  bool has_bias;
  std::vector<i32> starts = {};

  i64 channels() const { return shape.groups * shape.conv_width(); }
};

std::vector<ConvCase> cases() {
  const ScanShape narrow{.rule = ScanRule::DeltaRule, .groups = 2, .heads_per_group = 1, .key_dim = 3, .value_dim = 4};
  const ScanShape wide{.rule = ScanRule::StateSpace, .groups = 1, .heads_per_group = 3, .key_dim = 8, .value_dim = 20};
  return {{narrow, 9, 2, 4, false},
          {narrow, 2, 1, 4, true},
          {wide, 5, 3, 1, true},
          {wide, 300, 1, 8, true},
          {wide, 6, 2, 4, true, {0, 0, 0, 1, 2, 1, 3, 1, 3, 1, 3, 5}}};
}

struct Inputs {
  Numbers p, weight, bias, dx;

  Inputs(const ConvCase& c, DType type)
      : p(normals(c.seq * c.batch * c.shape.groups * c.shape.width(), 1, type)),
        weight(normals(c.channels() * c.taps, 2, type)),
        bias(normals(c.channels(), 3, type)),
        dx(normals(c.seq * c.batch * c.channels(), 4, type)) {}
};

double silu(double x) {
  return x / (1 + std::exp(-x));
}

Numbers convolved(const ConvCase& c, const Inputs& in) {
  Numbers x;
  for (i64 t = 0; t < c.seq; ++t) {
    for (i64 b = 0; b < c.batch; ++b) {
      const i64 start = c.starts.empty() ? 0 : c.starts[static_cast<std::size_t>(t * c.batch + b)];
      for (i64 channel = 0; channel < c.channels(); ++channel) {
        const i64 g = channel / c.shape.conv_width(), i = channel % c.shape.conv_width();
        double sum = c.has_bias ? in.bias[static_cast<std::size_t>(channel)] : 0;
        for (i64 tap = 0; tap < c.taps && t - tap >= start; ++tap)
          sum += in.weight[static_cast<std::size_t>(channel * c.taps + c.taps - 1 - tap)] *
                 in.p[static_cast<std::size_t>((((t - tap) * c.batch + b) * c.shape.groups + g) * c.shape.width() + i)];
        x.push_back(silu(sum));
      }
    }
  }
  return x;
}

struct Operands {
  Tensor p;
  ConvParams conv;
  ScanPositions positions;

  template <class MakeTensor>
  Operands(const ConvCase& c, const Inputs& in, Device& device, const MakeTensor& make)
      : p(make(in.p, Shape{c.seq, c.batch, c.shape.groups * c.shape.width()})),
        conv{make(in.weight, Shape{c.shape.groups, c.shape.conv_width(), c.taps}), Tensor()} {
    if (c.has_bias) conv.bias = make(in.bias, Shape{c.channels()});
    if (!c.starts.empty()) positions.starts = integers_of(c.starts, device).view({c.seq, c.batch});
  }
};

class ShortConvOpsTest : public Ops {
 protected:
  Operands operands(const ConvCase& c, const Inputs& in, Device& device) {
    return {c, in, device, [&](const Numbers& x, const Shape& shape) { return tensor_of(x, shape, dtype(), device); }};
  }
};
INSTANTIATE_TEST_SUITE_P(Types, ShortConvOpsTest, every_type(), ops_name);

TEST_P(ShortConvOpsTest, MatchesReferenceAndContinuesFromState) {
  for (const ConvCase& c : cases()) {
    const Inputs in(c, dtype());
    const auto outputs = run([&](Device& device) {
      const Operands o = operands(c, in, device);
      Tensor x = garbage({c.seq, c.batch, c.channels()}, dtype(), device);
      ops::short_conv(c.shape, o.p, o.conv, o.positions, nullptr, x);
      Tensor parts = garbage(x.shape(), dtype(), device);
      Tensor state = garbage({c.taps - 1, c.batch, c.channels()}, dtype(), device);
      for (i64 t = 0; t < c.seq; ++t) {
        Tensor part = parts.slice(t, t + 1);
        ScanPositions at{.first = t, .starts = {}};
        if (!c.starts.empty()) at.starts = o.positions.starts.slice(t, t + 1);
        ops::short_conv(c.shape, o.p.slice(t, t + 1), o.conv, at, &state, part);
      }
      return std::vector{x, parts};
    });
    expect_close(outputs[0], convolved(c, in), 4 * tolerance(dtype()), 1, "x");
    EXPECT_TRUE(same_bits(outputs[0], outputs[1])) << "token by token";
  }
}

TEST_P(ShortConvOpsTest, BackwardMatchesFp64) {
  for (const ConvCase& c : cases()) {
    const Inputs in(c, dtype());
    const auto gradients = [&](Device& device, DType accumulate, const auto& make) {
      const Operands o(c, in, device, make);
      Tensor dx = make(in.dx, {c.seq, c.batch, c.channels()}), dp = make(in.p, o.p.shape());
      Tensor d_weight = garbage(o.conv.weight.shape(), accumulate, device),
             d_bias = Tensor::zeros({c.channels()}, accumulate, device);
      Tensor* bias = c.has_bias ? &d_bias : nullptr;
      ops::short_conv_backward(c.shape, o.p, o.conv, o.positions, dx, dp, d_weight, bias, 0);
      return std::vector{dp, d_weight, d_bias};
    };
    const auto outputs = run([&](Device& device) {
      return gradients(device, accumulate_dtype(),
                       [&](const Numbers& x, const Shape& shape) { return tensor_of(x, shape, dtype(), device); });
    });
    CpuDevice host;
    const auto expected = gradients(host, DType::F64, [&](const Numbers& x, const Shape& shape) {
      return test::tensor_of(x, shape, DType::F64, host);
    });
    const double rows = std::sqrt(static_cast<double>(c.seq * c.batch));
    expect_close(outputs[0], to_doubles(expected[0]), 8 * tolerance(dtype()), 3, "dp");
    // The gradient of the sums is rounded to the type of x.
    for (const std::size_t i : {1, 2})
      expect_close(outputs[i], to_doubles(expected[i]), 2 * tolerance(dtype()), 3 * rows, str("gradient ", i));
  }
}

TEST(ShortConvGradientTest, MatchesFiniteDifferences) {
  CpuDevice device;
  for (const ConvCase& c : cases()) {
    const Inputs in(c, DType::F64);
    const Operands o(c, in, device, [&](const Numbers& x, const Shape& shape) {
      return test::tensor_of(x, shape, DType::F64, device);
    });
    Tensor x = Tensor::like(o.p, {c.seq, c.batch, c.channels()}), dx = Tensor::like(x);
    const Tensor weights = random_tensor(x.shape(), DType::F64, device, 4);
    ops::copy(weights, dx);
    Tensor dp = Tensor::zeros(o.p.shape(), DType::F64, device), d_weight = Tensor::like(o.conv.weight),
           d_bias = Tensor::zeros({c.channels()}, DType::F64, device);
    ops::short_conv_backward(c.shape, o.p, o.conv, o.positions, dx, dp, d_weight, c.has_bias ? &d_bias : nullptr, 0);
    const auto loss = [&] {
      ops::short_conv(c.shape, o.p, o.conv, o.positions, nullptr, x);
      return dot(x, weights);
    };
    expect_gradient(loss, o.p, dp, "p", 1e-6, 300);
    expect_gradient(loss, o.conv.weight, d_weight, "weight");
    if (c.has_bias) expect_gradient(loss, o.conv.bias, d_bias, "bias");
    const Numbers once = to_doubles(d_weight);
    ops::copy(weights, dx);
    ops::short_conv_backward(c.shape, o.p, o.conv, o.positions, dx, dp, d_weight, c.has_bias ? &d_bias : nullptr, 1);
    Numbers twice = once;
    for (double& value : twice) value *= 2;
    expect_close(d_weight, twice, "weight, added twice");
  }
}

TEST(ShortConvArgumentTest, RejectsInvalidArguments) {
  CpuDevice device;
  const ConvCase c = cases()[0];
  const Inputs in(c, DType::F32);
  const Operands o(c, in, device,
                   [&](const Numbers& x, const Shape& shape) { return test::tensor_of(x, shape, DType::F32, device); });
  Tensor x = Tensor::like(o.p, {c.seq, c.batch, c.channels()});
  EXPECT_THROW(ops::short_conv(c.shape, x, o.conv, {}, nullptr, x), Error);
  EXPECT_THROW(ops::short_conv(c.shape, o.p, {Tensor::like(o.p, {1, c.channels(), 9}), {}}, {}, nullptr, x), Error);
  EXPECT_THROW(ops::short_conv(c.shape, o.p, o.conv, {}, &x, x), Error);
}

}  // namespace
}  // namespace mcpp::test::short_conv_test
