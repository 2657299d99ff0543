#include "tensor/ops/scan/gated_scan.h"

#include <cmath>

#include "tests/support/gradcheck.h"
#include "tests/support/ops.h"

namespace mcpp::test::gated_scan_test {
namespace {

struct ScanCase {
  ScanShape shape;
  i64 seq, batch;
  std::vector<i32> starts = {};  ///< [seq, batch]; empty = one document
  double gate_scale = 1;         ///< standard deviation of the gates; decays are exp(-20) and stronger if it is 20
};

/// Returns starts of documents of these lengths in one sample, repeated for the whole batch.
std::vector<i32> documents(const std::vector<i64>& lengths, i64 batch) {
  std::vector<i32> starts;
  i32 begin = 0;
  for (const i64 length : lengths) {
    starts.insert(starts.end(), static_cast<std::size_t>(length * batch), begin);
    begin += static_cast<i32>(length);
  }
  return starts;
}

const char* rule_name(ScanRule rule) {
  return rule == ScanRule::DeltaRule ? "DeltaRule" : rule == ScanRule::StateSpace ? "StateSpace" : "ChannelDeltaRule";
}

constexpr ScanShape shape_of(ScanRule rule, i64 groups, i64 heads, i64 key_dim, i64 value_dim) {
  return {.rule = rule, .groups = groups, .heads_per_group = heads, .key_dim = key_dim, .value_dim = value_dim};
}

std::vector<ScanCase> cases() {
  std::vector<ScanCase> result;
  for (const ScanRule rule : {ScanRule::DeltaRule, ScanRule::StateSpace, ScanRule::ChannelDeltaRule}) {
    result.push_back({shape_of(rule, 1, 1, 1, 1), 3, 1});
    result.push_back({shape_of(rule, 2, 2, 8, 12), 150, 2});
    result.push_back({shape_of(rule, 1, 3, 20, 16), 64, 1});
    result.push_back({shape_of(rule, 2, 1, 32, 40), 140, 2, documents({1, 5, 70, 64}, 2)});
  }
  for (const ScanRule rule : {ScanRule::DeltaRule, ScanRule::ChannelDeltaRule}) {
    ScanShape large_steps = shape_of(rule, 2, 2, 8, 12);
    large_steps.allows_neg_eigval = true;
    result.push_back({large_steps, 150, 2});
    result.push_back({shape_of(rule, 1, 2, 24, 16), 150, 1, {}, 20});
  }
  return result;
}

/// Inputs in double precision.
struct Inputs {
  Numbers x, p, a_log, dt_bias, skip;

  Inputs(const ScanCase& c, DType type)
      : x(normals(c.seq * c.batch * c.shape.groups * c.shape.conv_width(), 1, type)),
        p(normals(c.seq * c.batch * c.shape.groups * c.shape.width(), 2, type, c.gate_scale)),
        a_log(normals(c.shape.heads(), 3, type, 0.5)),
        dt_bias(normals(c.shape.decays(), 4, type)),
        skip(normals(c.shape.heads(), 5, type)) {}
};

double softplus(double x) {
  return std::log1p(std::exp(x));
}
double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// Recurrence of one head, token by token.
class PlainScan {
 public:
  PlainScan(const ScanCase& c, const Inputs& in) : c_(c), in_(in) {}

  Numbers outputs() {
    const ScanShape& s = c_.shape;
    Numbers y(static_cast<std::size_t>(c_.seq * c_.batch * s.heads() * s.value_dim));
    for (i64 b = 0; b < c_.batch; ++b) {
      for (i64 head = 0; head < s.heads(); ++head) {
        Numbers state(static_cast<std::size_t>(s.key_dim * s.value_dim));
        for (i64 t = 0; t < c_.seq; ++t) {
          if (!c_.starts.empty() && c_.starts[static_cast<std::size_t>(t * c_.batch + b)] == t)
            std::ranges::fill(state, 0.0);
          step(t, b, head, state, y.data() + ((t * c_.batch + b) * s.heads() + head) * s.value_dim);
        }
      }
    }
    return y;
  }

 private:
  void step(i64 t, i64 b, i64 head, Numbers& state, double* y) const {
    const ScanShape& s = c_.shape;
    const i64 h = head % s.heads_per_group, row = (t * c_.batch + b) * s.groups + head / s.heads_per_group;
    const double* x = in_.x.data() + row * s.conv_width();
    const double* gates = in_.p.data() + (row + 1) * s.width() - s.decay_width();
    Numbers q(x, x + s.key_dim), k(x + s.key_dim, x + 2 * s.key_dim);
    const double* v = x + 2 * s.key_dim + h * s.value_dim;
    const bool delta = s.is_delta();
    const auto at = static_cast<std::size_t>(head);
    const i64 decays = s.decays_per_head();
    const auto dt = [&](i64 channel) {
      const i64 gate = (delta ? s.heads_per_group : 0) + h * decays + channel;
      return softplus(gates[gate] + in_.dt_bias[static_cast<std::size_t>(head * decays + channel)]);
    };
    const double beta = delta ? s.step_scale() * sigmoid(gates[h]) : dt(0);
    if (delta) {
      normalize(q, 1 / std::sqrt(static_cast<double>(s.key_dim)));
      normalize(k, 1);
    }
    for (i64 i = 0; i < s.key_dim; ++i) {
      const double decay = std::exp(-std::exp(in_.a_log[at]) * dt(decays == 1 ? 0 : i));
      for (i64 j = 0; j < s.value_dim; ++j) state[static_cast<std::size_t>(i * s.value_dim + j)] *= decay;
    }
    for (i64 j = 0; j < s.value_dim; ++j) {
      double old = 0;
      for (i64 i = 0; i < s.key_dim && delta; ++i)
        old += k[static_cast<std::size_t>(i)] * state[static_cast<std::size_t>(i * s.value_dim + j)];
      y[j] = delta ? 0 : in_.skip[at] * v[j];
      for (i64 i = 0; i < s.key_dim; ++i) {
        double& element = state[static_cast<std::size_t>(i * s.value_dim + j)];
        element += beta * k[static_cast<std::size_t>(i)] * (v[j] - old);
        y[j] += q[static_cast<std::size_t>(i)] * element;
      }
    }
  }
  static void normalize(Numbers& x, double factor) {
    double squares = 1e-6;
    for (const double element : x) squares += element * element;
    for (double& element : x) element *= factor / std::sqrt(squares);
  }

  const ScanCase& c_;
  const Inputs& in_;
};

/// Tensors of the inputs on a device.
struct Operands {
  Tensor x, p;
  ScanParams params;
  ScanPositions positions;

  template <class MakeTensor>
  Operands(const ScanCase& c, const Inputs& in, Device& device, const MakeTensor& make)
      : x(make(in.x, Shape{c.seq, c.batch, c.shape.groups * c.shape.conv_width()})),
        p(make(in.p, Shape{c.seq, c.batch, c.shape.groups * c.shape.width()})),
        params{make(in.a_log, Shape{c.shape.heads()}), make(in.dt_bias, Shape{c.shape.decays()}), Tensor()} {
    if (c.shape.rule == ScanRule::StateSpace) params.skip = make(in.skip, Shape{c.shape.heads()});
    if (!c.starts.empty()) positions.starts = integers_of(c.starts, device).view({c.seq, c.batch});
  }
};

class GatedScanOpsTest : public Ops {
 protected:
  Operands operands(const ScanCase& c, const Inputs& in, Device& device) {
    return {c, in, device, [&](const Numbers& x, const Shape& shape) { return tensor_of(x, shape, dtype(), device); }};
  }
};
INSTANTIATE_TEST_SUITE_P(Types, GatedScanOpsTest, every_type(), ops_name);

TEST_P(GatedScanOpsTest, MatchesRecurrence) {
  for (const ScanCase& c : cases()) {
    const Inputs in(c, dtype());
    const auto outputs = run([&](Device& device) {
      const Operands o = operands(c, in, device);
      Tensor y = garbage({c.seq, c.batch, c.shape.heads() * c.shape.value_dim}, dtype(), device);
      ops::gated_scan(c.shape, o.x, o.p, o.params, o.positions, nullptr, y);
      return std::vector{y};
    });
    const double factor = dtype() == DType::F32 ? 10 : is_low_precision(dtype()) ? 1 : 10;
    expect_close(outputs[0], PlainScan(c, in).outputs(), factor * tolerance(dtype()), 1, "y");
  }
}

TEST_P(GatedScanOpsTest, ContinuesFromStateBitwiseAtChunkBoundary) {
  for (const ScanCase& c : cases()) {
    if (!c.starts.empty() || c.seq <= kScanChunk) continue;
    const Inputs in(c, dtype());
    const auto outputs = run([&](Device& device) {
      const Operands o = operands(c, in, device);
      Tensor whole = garbage({c.seq, c.batch, c.shape.heads() * c.shape.value_dim}, dtype(), device);
      Tensor parts = garbage(whole.shape(), dtype(), device);
      Tensor state =
          garbage({c.batch, c.shape.heads(), c.shape.key_dim, c.shape.value_dim}, accumulate_dtype(), device);
      ops::gated_scan(c.shape, o.x, o.p, o.params, {}, nullptr, whole);
      for (const auto& [begin, end] : {std::pair{i64{0}, kScanChunk}, std::pair{kScanChunk, c.seq}}) {
        Tensor y = parts.slice(begin, end);
        ops::gated_scan(c.shape, o.x.slice(begin, end), o.p.slice(begin, end), o.params, {.first = begin, .starts = {}},
                        &state, y);
      }
      return std::vector{whole, parts};
    });
    EXPECT_TRUE(same_bits(outputs[0], outputs[1]));
  }
}

TEST_P(GatedScanOpsTest, BackwardMatchesFp64) {
  for (const ScanCase& c : cases()) {
    const Inputs in(c, dtype());
    const Numbers d_out = normals(c.seq * c.batch * c.shape.heads() * c.shape.value_dim, 9);
    const auto gradients = [&](Device& device, DType type, DType accumulate, const auto& make) {
      const Operands o(c, in, device, make);
      Tensor dx = garbage(o.x.shape(), type, device), dp = make(in.p, o.p.shape());
      const Shape per_head{c.batch, c.shape.heads()};
      ScanParamGradients d{
          garbage(per_head, accumulate, device), garbage({c.batch, c.shape.decays()}, accumulate, device), {}};
      if (c.shape.rule == ScanRule::StateSpace) d.skip = garbage(per_head, accumulate, device);
      ops::gated_scan_backward(c.shape, make(d_out, {c.seq, c.batch, c.shape.heads() * c.shape.value_dim}), o.x, o.p,
                               o.params, o.positions, dx, dp, d);
      std::vector<Tensor> all{dx, dp, d.a_log, d.dt_bias};
      if (d.skip.defined()) all.push_back(d.skip);
      return all;
    };
    const auto outputs = run([&](Device& device) {
      return gradients(device, dtype(), accumulate_dtype(),
                       [&](const Numbers& x, const Shape& shape) { return tensor_of(x, shape, dtype(), device); });
    });
    CpuDevice host;
    const auto expected = gradients(host, DType::F64, DType::F64, [&](const Numbers& x, const Shape& shape) {
      Tensor t = test::tensor_of(x, shape, DType::F64, host);
      if (x.size() == d_out.size() && x == d_out) set_values(t, to_doubles(test::tensor_of(x, shape, dtype(), host)));
      return t;
    });
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const double magnitude = i < 2 ? 2 : 30;
      const double relative = i < 2 ? 10 * tolerance(dtype()) : 10 * tolerance(accumulate_dtype());
      expect_close(outputs[i], to_doubles(expected[i]), relative, magnitude, str("gradient ", i));
    }
  }
}

TEST(GatedScanGradientTest, MatchesFiniteDifferences) {
  CpuDevice device;
  for (const ScanCase& c : cases()) {
    const Inputs in(c, DType::F64);
    const Operands o(c, in, device, [&](const Numbers& x, const Shape& shape) {
      return test::tensor_of(x, shape, DType::F64, device);
    });
    Tensor y = Tensor::like(o.x, {c.seq, c.batch, c.shape.heads() * c.shape.value_dim});
    const Tensor dy = random_tensor(y.shape(), DType::F64, device, 9);
    const auto loss = [&] {
      ops::gated_scan(c.shape, o.x, o.p, o.params, o.positions, nullptr, y);
      return dot(y, dy);
    };
    Tensor dx = Tensor::like(o.x), dp = Tensor::zeros(o.p.shape(), DType::F64, device);
    const Shape per_head{c.batch, c.shape.heads()};
    ScanParamGradients d{Tensor::like(o.x, per_head), Tensor::like(o.x, {c.batch, c.shape.decays()}),
                         Tensor::like(o.x, per_head)};
    ops::gated_scan_backward(c.shape, dy, o.x, o.p, o.params, o.positions, dx, dp, d);
    const auto check_param = [&](const Tensor& param, const Tensor& per_sample, const char* name) {
      Tensor sum = Tensor::zeros(param.shape(), DType::F64, device);
      ops::column_sum(per_sample, sum, 0);
      expect_gradient(loss, param, sum, name, 1e-5);
    };
    expect_gradient(loss, o.x, dx, "x", 1e-6, 200);
    expect_gradient(loss, o.p, dp, "p", 1e-6, 400);
    check_param(o.params.a_log, d.a_log, "a_log");
    check_param(o.params.dt_bias, d.dt_bias, "dt_bias");
    if (o.params.skip.defined()) check_param(o.params.skip, d.skip, "skip");
  }
}

class GatedScanDocumentsTest : public testing::TestWithParam<ScanRule> {};
INSTANTIATE_TEST_SUITE_P(Rules, GatedScanDocumentsTest,
                         testing::Values(ScanRule::DeltaRule, ScanRule::StateSpace, ScanRule::ChannelDeltaRule),
                         [](const auto& p) { return std::string(rule_name(p.param)); });

TEST_P(GatedScanDocumentsTest, PackedDocumentsMatchSeparateDocuments) {
  CpuDevice device;
  const ScanShape shape = shape_of(GetParam(), 2, 2, 8, 12);
  const std::vector<i64> lengths{70, 1, 129};
  const ScanCase packed{shape, 200, 1, documents(lengths, 1)};
  const Inputs in(packed, DType::F32);
  const auto make = [&](const Numbers& x, const Shape& s) { return test::tensor_of(x, s, DType::F32, device); };
  const Operands o(packed, in, device, make);
  Tensor y = Tensor::like(o.x, {200, 1, shape.heads() * shape.value_dim}), alone = Tensor::like(y);
  ops::gated_scan(shape, o.x, o.p, o.params, o.positions, nullptr, y);
  i64 begin = 0;
  for (const i64 length : lengths) {
    Tensor part = alone.slice(begin, begin + length);
    ops::gated_scan(shape, o.x.slice(begin, begin + length), o.p.slice(begin, begin + length), o.params, {}, nullptr,
                    part);
    begin += length;
  }
  EXPECT_TRUE(same_bits(y, alone));
}

TEST(GatedScanArgumentTest, RejectsInvalidArguments) {
  CpuDevice device;
  const ScanShape shape = shape_of(ScanRule::StateSpace, 1, 1, 4, 4);
  const ScanCase c{shape, 6, 2};
  const Inputs in(c, DType::F32);
  const auto make = [&](const Numbers& x, const Shape& s) { return test::tensor_of(x, s, DType::F32, device); };
  const Operands o(c, in, device, make);
  Tensor y = Tensor::like(o.x, {6, 2, 4}), narrow = Tensor::like(o.x, {6, 2, 3});
  EXPECT_THROW(ops::gated_scan(shape, o.x, o.p, o.params, {}, nullptr, narrow), Error);
  EXPECT_THROW(ops::gated_scan(shape, o.p, o.p, o.params, {}, nullptr, y), Error);
  EXPECT_THROW(ops::gated_scan(shape, o.x, o.p, {o.params.a_log, o.params.dt_bias, {}}, {}, nullptr, y), Error);
  EXPECT_THROW(ops::gated_scan(shape, o.x, o.p, o.params, {.first = -1, .starts = {}}, nullptr, y), Error);
  EXPECT_THROW(
      ops::gated_scan(shape, o.x, o.p, o.params, {.first = 0, .starts = integers_of({0, 0}, device)}, nullptr, y),
      Error);
  EXPECT_THROW(ops::gated_scan(shape, o.x, o.p, o.params, {}, &y, y), Error);
  EXPECT_THROW(ops::gated_scan({}, o.x, o.p, o.params, {}, nullptr, y), Error);
}

}  // namespace
}  // namespace mcpp::test::gated_scan_test
