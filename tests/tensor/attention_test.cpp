#include <cmath>

#include "tensor/cpu/attention/attention_kernels.h"
#include "tensor/ops/dropout.h"
#include "tests/support/gradcheck.h"
#include "tests/support/ops.h"

namespace mcpp::test {
namespace {

class Attention : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, Attention, every_type(), ops_name);

struct Sizes {
  i64 queries, keys, batch, heads, kv_heads, dim;
};
struct Case {
  Sizes size;
  bool causal = true;
  i64 query_offset = 0;
  float dropout = 0;
  float magnitude = 1;  // of q and k
};

/// The numbers of heads, on the host.
struct HeadNumbers {
  explicit HeadNumbers(const Heads& x) : heads(x), all(numbers(x.base)) {}
  double operator()(i64 s, i64 b, i64 head, i64 d) const {
    return all[static_cast<std::size_t>(heads.offset + s * heads.seq_stride + b * heads.batch_stride +
                                        head / heads.group_size * heads.group_stride +
                                        head % heads.group_size * heads.head_dim + d)];
  }
  Heads heads;
  Numbers all;
};

Heads dense_heads(const Tensor& x) {  // [s, b, heads, dim]
  return {x,       0, x.dim(0), x.dim(1), x.dim(2), x.dim(3), 1, x.dim(1) * x.dim(2) * x.dim(3), x.dim(2) * x.dim(3),
          x.dim(3)};
}

/// Inputs, outputs and gradients of one call; outputs start as NaN. Tensors lie as tensor_of() says of `first`.
struct Call {
  Heads q, k, v, dq, dk, dv;
  Tensor out, lse, dout;
  AttentionOptions options;

  Call(const Case& c, DType type, Device& device, i64 first = 1) {
    const Sizes& n = c.size;
    const Shape queries{n.queries, n.batch, n.heads, n.dim}, keys{n.keys, n.batch, n.kv_heads, n.dim};
    q = dense_heads(random_tensor(queries, type, device, 1, c.magnitude, first));
    k = dense_heads(random_tensor(keys, type, device, 2, c.magnitude, first));
    v = dense_heads(random_tensor(keys, type, device, 3, 1, first));
    dq = dense_heads(garbage(queries, type, device, first));
    dk = dense_heads(garbage(keys, type, device, first)), dv = dense_heads(garbage(keys, type, device, first));
    make_outputs(c, device, first);
  }
  /// Views into fused tensors, for as many keys as queries.
  static Call packed(const Case& c, DType type, Device& device, i64 first = 1) {
    Call call(c, type, device, first);
    const Sizes& n = c.size;
    const Shape fused{n.queries, n.batch, n.kv_heads, n.heads / n.kv_heads + 2, n.dim};
    const PackedHeads x = packed_heads(random_tensor(fused, type, device, 4, 1, first)),
                      dx = packed_heads(garbage(fused, type, device, first));
    call.q = x.q, call.k = x.k, call.v = x.v, call.dq = dx.q, call.dk = dx.k, call.dv = dx.v;
    return call;
  }
  void run() {
    ops::attention(q, k, v, options, out, lse);
    ops::attention_backward(dout, q, k, v, out, lse, options, dq, dk, dv);
  }

 private:
  void make_outputs(const Case& c, Device& device, i64 first) {
    const Sizes& n = c.size;
    const DType type = q.base.dtype();
    out = garbage({n.queries, n.batch, n.heads * n.dim}, type, device, first);
    lse = garbage({n.batch, n.heads, n.queries}, type == DType::F64 ? type : DType::F32, device, first);
    dout = random_tensor(out.shape(), type, device, 5, 1, first);
    options.softmax_scale = 1 / std::sqrt(static_cast<double>(n.dim));
    options.causal = c.causal;
    options.query_offset = c.query_offset;
    options.dropout = {.p = c.dropout, .key = 77, .samples = {}, .first_position = 0, .first_column = 3};
    for (i64 b = 0; b < n.batch; ++b) options.dropout.samples.push_back((i64{1} << 33) + 5 * b);
  }
};

double keep_factor(const Dropout& d, i64 b, i64 head, i64 position, i64 key) {
  if (d.p == 0) return 1;
  const Philox4 words = philox4x32(philox_key(d.key, "attention", static_cast<u64>(3 + head)),
                                   dropout_counter(d.samples[static_cast<std::size_t>(b)], position, key / 4));
  return words[static_cast<std::size_t>(key % 4)] >= dropout_threshold(d.p) ? dropout_scale(d.p) : 0;
}

/// Plain attention of one (batch column, query head, query) in fp64, as rows of numbers.
struct Truth {
  std::vector<double> out, lse, dq, dk, dv;  // laid out as the dense tensors

  explicit Truth(const Call& c) : q_(c.q), k_(c.k), v_(c.v), dout_(numbers(c.dout)) {
    const i64 dim = c.q.head_dim, b = c.q.batch;
    out.resize(static_cast<std::size_t>(c.q.seq * b * c.q.heads * dim));
    dq = out;
    lse.resize(static_cast<std::size_t>(c.q.seq * b * c.q.heads));
    dk.resize(static_cast<std::size_t>(c.k.seq * b * c.k.heads * dim));
    dv = dk;
    for (i64 i = 0; i < c.q.seq * b * c.q.heads; ++i) add(c, i / c.q.heads / b, i / c.q.heads % b, i % c.q.heads);
  }

 private:
  void add(const Call& c, i64 s, i64 b, i64 head) {
    const i64 dim = c.q.head_dim, position = s + c.options.query_offset, kv_head = head / (c.q.heads / c.k.heads);
    const i64 keys = c.options.causal ? position + 1 : c.k.seq;
    const double scale = c.options.softmax_scale;
    std::vector<double> p, dp;
    for (i64 k = 0; k < keys; ++k) {
      double dot = 0, ddot = 0;
      for (i64 d = 0; d < dim; ++d) {
        dot += q_(s, b, head, d) * k_(k, b, kv_head, d);
        ddot += at(dout_, row(c.q, s, b, head) + d) * v_(k, b, kv_head, d);
      }
      p.push_back(scale * dot), dp.push_back(ddot);
    }
    const double largest = *std::max_element(p.begin(), p.end());
    double sum = 0, mean = 0;
    for (double& x : p) sum += x = std::exp(x - largest);
    lse[static_cast<std::size_t>((b * c.q.heads + head) * c.q.seq + s)] = largest + std::log(sum);
    for (i64 k = 0; k < keys; ++k) {
      const auto i = static_cast<std::size_t>(k);
      const double keep = keep_factor(c.options.dropout, b, head, position, k);
      p[i] /= sum, dp[i] *= keep;
      mean += p[i] * dp[i];
      for (i64 d = 0; d < dim; ++d) {
        at(out, row(c.q, s, b, head) + d) += p[i] * keep * v_(k, b, kv_head, d);
        at(dv, row(c.k, k, b, kv_head) + d) += p[i] * keep * at(dout_, row(c.q, s, b, head) + d);
      }
    }
    for (i64 k = 0; k < keys; ++k) {
      const auto i = static_cast<std::size_t>(k);
      const double ds = scale * p[i] * (dp[i] - mean);
      for (i64 d = 0; d < dim; ++d) {
        at(dq, row(c.q, s, b, head) + d) += ds * k_(k, b, kv_head, d);
        at(dk, row(c.k, k, b, kv_head) + d) += ds * q_(s, b, head, d);
      }
    }
  }
  static i64 row(const Heads& x, i64 s, i64 b, i64 head) { return ((s * x.batch + b) * x.heads + head) * x.head_dim; }
  static double& at(std::vector<double>& x, i64 i) { return x[static_cast<std::size_t>(i)]; }

  HeadNumbers q_, k_, v_;
  Numbers dout_;
};

/// The largest error, relative to the number itself or to the root mean square of all, whichever is larger.
double error(const std::vector<double>& truth, const auto& value) {
  double squares = 0, largest = 0;
  for (double x : truth) squares += x * x;
  const double typical = std::max(0.1, std::sqrt(squares / static_cast<double>(truth.size())));
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const double e = std::abs(value(static_cast<i64>(i)) - truth[i]) / std::max(typical, std::abs(truth[i]));
    if (!(e <= largest)) largest = e;  // NaN too
  }
  return largest;
}
double error(const std::vector<double>& truth, const Tensor& value) {
  const Numbers all = numbers(value);
  return error(truth, [&](i64 i) { return all[static_cast<std::size_t>(i)]; });
}
double error(const std::vector<double>& truth, const Heads& x) {
  const HeadNumbers value(x);
  return error(truth, [&](i64 i) {
    const i64 d = i % x.head_dim, head = i / x.head_dim % x.heads, b = i / x.head_dim / x.heads % x.batch;
    return value(i / x.head_dim / x.heads / x.batch, b, head, d);
  });
}

struct Tolerance {
  double out, lse, gradient;
};
Tolerance attention_tolerance(DType type) {
  if (type == DType::F64) return {1e-13, 1e-13, 1e-12};
  if (type == DType::F32) return {1e-5, 2e-6, 2e-5};
  if (type == DType::F16) return {0.004, 2e-5, 0.0125};
  return {0.03, 2e-5, 0.1};  // gradients start from the rounded output: dout * out cancels
}

void expect_truth(const Call& call, const Tolerance& t) {
  const Truth truth(call);
  EXPECT_LT(error(truth.out, call.out), t.out);
  EXPECT_LT(error(truth.lse, call.lse), t.lse);
  EXPECT_LT(error(truth.dq, call.dq), t.gradient) << "dq";
  EXPECT_LT(error(truth.dk, call.dk), t.gradient) << "dk";
  EXPECT_LT(error(truth.dv, call.dv), t.gradient) << "dv";
}

std::string describe(const Case& c, DType type) {
  const Sizes& n = c.size;
  return str(name_of(type), ": ", n.queries, " queries, ", n.keys, " keys, batch ", n.batch, ", heads ", n.heads, "/",
             n.kv_heads, " of ", n.dim, c.causal ? ", causal" : "", ", offset ", c.query_offset, ", dropout ",
             c.dropout);
}

const std::vector<Case> kCases{
    {{1, 1, 1, 1, 1, 8}},
    {{2, 2, 2, 2, 1, 16}},
    {{5, 5, 1, 2, 2, 32}},
    {{31, 31, 2, 2, 1, 40}},
    {{32, 32, 1, 1, 1, 64}},
    {{33, 33, 1, 2, 1, 64}, false},
    {{63, 63, 1, 1, 1, 128}},
    {{64, 64, 2, 4, 2, 64}},
    {{65, 65, 1, 2, 1, 20}},
    {{97, 97, 1, 2, 2, 64}},
    {{128, 128, 1, 2, 2, 32}},
    {{130, 130, 3, 4, 1, 16}},
    {{130, 130, 1, 2, 2, 128}, false},
    {{7, 70, 2, 2, 1, 64}, false},
    {{100, 33, 1, 2, 2, 64}, false},
    {{1, 130, 2, 4, 2, 64}, true, 129},
    {{3, 200, 1, 4, 1, 40}, true, 100},  // keys beyond the last query are never seen
    {{2, 77, 1, 2, 2, 20}, false},
    {{40, 140, 1, 4, 2, 64}, true, 100},
    {{70, 90, 1, 2, 1, 32}, true, 17},
    {{66, 200, 1, 2, 2, 8}, true, 40},
    {{1, 1, 1, 1, 1, 1}, true, 0, 0.5f},
    {{50, 50, 2, 2, 1, 24}, true, 0, 0.1f},
    {{130, 130, 1, 2, 2, 64}, true, 0, 0.3f},
    {{70, 90, 2, 2, 1, 40}, true, 17, 0.2f},
    {{65, 129, 1, 2, 1, 32}, false, 0, 0.9f},
};

TEST_P(Attention, IsSoftmaxOfScoresTimesValues) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(describe(c, dtype()));
    Call call(c, dtype(), any_device(), place().first);
    call.run();
    expect_truth(call, attention_tolerance(dtype()));
  }
}

TEST_P(Attention, ReadsAndWritesPackedHeads) {
  for (const Sizes& n : {Sizes{70, 70, 2, 4, 4, 64}, Sizes{70, 70, 2, 6, 2, 40}, Sizes{33, 33, 1, 4, 1, 8},
                         Sizes{128, 128, 2, 4, 2, 64}}) {
    Call call = Call::packed({n}, dtype(), any_device(), place().first);
    call.run();
    expect_truth(call, attention_tolerance(dtype()));
  }
}

TEST_P(Attention, GivesTheSameBitsForAnyNumberOfThreads) {
  for (const Case& c : {Case{{200, 200, 1, 4, 1, 64}}, Case{{100, 100, 2, 4, 2, 40}, true, 0, 0.1f},
                        Case{{1, 300, 1, 4, 2, 64}, true, 299}}) {
    run([&](Device& device) {
      Call call(c, dtype(), device, place().first);
      call.run();
      return std::vector<Tensor>{call.out, call.lse, call.dq.base, call.dk.base, call.dv.base};
    });
  }
}

TEST_P(Attention, SurvivesExtremeScores) {
  for (float magnitude : {0.f, 40.f, 1000.f}) {
    Call call({{70, 70, 1, 2, 1, 64}, true, 0, 0, magnitude}, dtype(), any_device(), place().first);
    call.run();
    // Scores near 1e6 are themselves only known to 0.1 in fp32; what must hold is that weights stay weights.
    if (magnitude < 100 && !is_narrow(dtype())) expect_truth(call, {2e-3, 2e-6, 2e-2});
    for (const double x : numbers(call.out)) ASSERT_LT(std::abs(x), 6);
    for (const Heads* heads : {&call.dq, &call.dk, &call.dv}) {
      for (const double x : numbers(heads->base)) ASSERT_TRUE(std::isfinite(x));
    }
  }
}

TEST_P(Attention, ShowsNan) {
  for (i64 queries : {i64{1}, i64{70}}) {
    Call call({{queries, queries, 1, 1, 1, 32}}, dtype(), any_device(), place().first);
    Numbers keys = numbers(call.k.base);
    keys[5] = std::nan("");
    set_numbers(call.k.base, keys);
    call.run();
    EXPECT_TRUE(std::isnan(numbers(call.out).front()));
    EXPECT_TRUE(std::isnan(numbers(call.lse).back()));
  }
}

// On processors with AMX, bf16 is multiplied there; everywhere else by the vector units.
TEST(AttentionOfBf16, AlsoWorksWithoutTheMatrixUnit) {
  CpuDevice device({.threads = 2});
  for (const Case& c : kCases) {
    SCOPED_TRACE(describe(c, DType::BF16));
    Call call(c, DType::BF16, device);
    kernel::AttentionProblem<BFloat16> p(call.q, call.k, call.v, call.options);
    p.out = kernel::HeadRows<BFloat16>(call.out, p.batch, p.heads, p.head_dim);
    p.dout = kernel::HeadRows<BFloat16>(call.dout, p.batch, p.heads, p.head_dim);
    p.lse = call.lse.data<float>();
    p.dq = kernel::HeadRows<BFloat16>(call.dq), p.dk = kernel::HeadRows<BFloat16>(call.dk);
    p.dv = kernel::HeadRows<BFloat16>(call.dv);
    kernel::attention_forward(p, device);
    kernel::attention_backward(p, device);
    expect_truth(call, {0.005, 1e-5, 0.08});
  }
}

TEST(AttentionGradient, IsTheDerivativeOfTheOutput) {
  CpuDevice device;
  for (const Case& c : {Case{{9, 9, 2, 4, 2, 8}}, Case{{70, 90, 1, 2, 1, 8}, true, 17, 0.2f}}) {
    Call call(c, DType::F64, device);
    call.run();
    const auto loss = [&] {
      ops::attention(call.q, call.k, call.v, call.options, call.out, call.lse);
      return dot(call.out, call.dout);
    };
    expect_gradient(loss, call.q.base, call.dq.base, "dq");
    expect_gradient(loss, call.k.base, call.dk.base, "dk");
    expect_gradient(loss, call.v.base, call.dv.base, "dv");
  }
}

TEST(AttentionArguments, AreChecked) {
  CpuDevice device;
  Call call({{4, 4, 1, 2, 1, 8}}, DType::F32, device);
  call.options.query_offset = 1;  // the last query would see a key that is not there
  EXPECT_THROW(ops::attention(call.q, call.k, call.v, call.options, call.out, call.lse), Error);
  call.options.query_offset = 0;
  call.options.softmax_scale = -1;
  EXPECT_THROW(ops::attention(call.q, call.k, call.v, call.options, call.out, call.lse), Error);
}

}  // namespace
}  // namespace mcpp::test
