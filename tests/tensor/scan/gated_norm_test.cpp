#include <cmath>

#include "tensor/ops/scan/gated_scan.h"
#include "tests/support/gradcheck.h"
#include "tests/support/ops.h"

namespace mcpp::test::gated_norm_test {
namespace {

constexpr double kEps = 1e-3;

struct NormCase {
  ScanShape shape;
  i64 seq, batch;

  i64 outputs() const { return shape.heads() * shape.value_dim; }
  i64 weights() const { return shape.is_delta() ? shape.value_dim : outputs(); }
  i64 blocks() const { return ceil_div(seq * batch, ops::kGatedNormRows); }
};

std::vector<NormCase> cases() {
  std::vector<NormCase> result;
  for (const ScanRule rule : {ScanRule::DeltaRule, ScanRule::StateSpace, ScanRule::ChannelDeltaRule}) {
    result.push_back({{.rule = rule, .groups = 2, .heads_per_group = 3, .key_dim = 2, .value_dim = 5}, 7, 2});
    result.push_back({{.rule = rule, .groups = 1, .heads_per_group = 1, .key_dim = 1, .value_dim = 64}, 40, 1});
  }
  return result;
}

struct Inputs {
  Numbers y, p, w, d_out;

  Inputs(const NormCase& c, DType type)
      : y(normals(c.seq * c.batch * c.outputs(), 1, type)),
        p(normals(c.seq * c.batch * c.shape.groups * c.shape.width(), 2, type)),
        w(normals(c.weights(), 3, type)),
        d_out(normals(c.seq * c.batch * c.outputs(), 4, type)) {}
};

Numbers normalized(const NormCase& c, const Inputs& in) {
  const ScanShape& s = c.shape;
  const bool gate_first = s.rule == ScanRule::StateSpace;
  const i64 size = gate_first ? s.gate_width() : s.value_dim;
  Numbers out(in.y.size());
  for (i64 segment = 0; segment < static_cast<i64>(out.size()) / size; ++segment) {
    double squares = 0;
    Numbers gates;
    for (i64 i = 0; i < size; ++i) {
      const i64 at = segment * size + i, group = at / s.gate_width();
      const double z = in.p[static_cast<std::size_t>(group * s.width() + s.conv_width() + at % s.gate_width())];
      gates.push_back((s.rule == ScanRule::ChannelDeltaRule ? 1 : z) / (1 + std::exp(-z)));
      const double value = in.y[static_cast<std::size_t>(at)] * (gate_first ? gates.back() : 1);
      squares += value * value;
    }
    for (i64 i = 0; i < size; ++i) {
      const auto at = static_cast<std::size_t>(segment * size + i);
      const double w = in.w[at % static_cast<std::size_t>(c.weights())];
      out[at] =
          in.y[at] * gates[static_cast<std::size_t>(i)] * w / std::sqrt(squares / static_cast<double>(size) + kEps);
    }
  }
  return out;
}

class GatedNormOpsTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, GatedNormOpsTest, every_type(), ops_name);

/// Returns dy, dp and the partial sums dw [rows, weights].
template <class MakeTensor>
std::vector<Tensor> gradients(const NormCase& c, const Inputs& in, Device& device, DType accumulate,
                              const MakeTensor& make) {
  const Shape shape{c.seq, c.batch, c.outputs()};
  const Tensor y = make(in.y, shape), p = make(in.p, {c.seq, c.batch, c.shape.groups * c.shape.width()});
  Tensor dy = make(in.y, shape), dp = make(in.p, p.shape()),
         dw = garbage({c.blocks(), c.weights()}, accumulate, device);
  ops::gated_norm_backward(c.shape, make(in.d_out, shape), y, p, make(in.w, {c.weights()}), kEps, dy, dp, dw);
  return {dy, dp, dw};
}

TEST_P(GatedNormOpsTest, MatchesReference) {
  for (const NormCase& c : cases()) {
    const Inputs in(c, dtype());
    const auto outputs = run([&](Device& device) {
      const Shape shape{c.seq, c.batch, c.outputs()};
      Tensor out = garbage(shape, dtype(), device);
      ops::gated_norm(c.shape, tensor_of(in.y, shape, dtype(), device),
                      tensor_of(in.p, {c.seq, c.batch, c.shape.groups * c.shape.width()}, dtype(), device),
                      tensor_of(in.w, {c.weights()}, dtype(), device), kEps, out);
      return std::vector{out};
    });
    expect_close(outputs[0], normalized(c, in), "out", 4);
  }
}

TEST_P(GatedNormOpsTest, BackwardMatchesFp64) {
  for (const NormCase& c : cases()) {
    const Inputs in(c, dtype());
    const auto outputs = run([&](Device& device) {
      return gradients(c, in, device, accumulate_dtype(),
                       [&](const Numbers& x, const Shape& shape) { return tensor_of(x, shape, dtype(), device); });
    });
    CpuDevice host;
    const auto expected = gradients(c, in, host, DType::F64, [&](const Numbers& x, const Shape& shape) {
      return test::tensor_of(x, shape, DType::F64, host);
    });
    const char* names[] = {"dy", "dp", "dw"};
    for (const std::size_t i : {0, 1, 2}) expect_close(outputs[i], to_doubles(expected[i]), names[i], 8);
  }
}

TEST(GatedNormGradientTest, MatchesFiniteDifferences) {
  CpuDevice device;
  for (const NormCase& c : cases()) {
    const Inputs in(c, DType::F64);
    const auto make = [&](const Numbers& x, const Shape& s) { return test::tensor_of(x, s, DType::F64, device); };
    const Shape shape{c.seq, c.batch, c.outputs()};
    const Tensor y = make(in.y, shape), p = make(in.p, {c.seq, c.batch, c.shape.groups * c.shape.width()}),
                 w = make(in.w, {c.weights()}), d_out = make(in.d_out, shape);
    Tensor out = Tensor::like(y), dy = Tensor::like(y), dp = Tensor::zeros(p.shape(), DType::F64, device),
           parts = Tensor::like(y, {c.blocks(), c.weights()}), dw = Tensor::like(w);
    ops::gated_norm_backward(c.shape, d_out, y, p, w, kEps, dy, dp, parts);
    ops::column_sum(parts, dw, 0);
    const auto loss = [&] {
      ops::gated_norm(c.shape, y, p, w, kEps, out);
      return dot(out, d_out);
    };
    expect_gradient(loss, y, dy, "y");
    expect_gradient(loss, p, dp, "p", 1e-6, 200);
    expect_gradient(loss, w, dw, "w");
  }
}

}  // namespace
}  // namespace mcpp::test::gated_norm_test
