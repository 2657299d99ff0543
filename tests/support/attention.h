// Calls of attention, and a reference implementation in double precision.
#pragma once
#include <cmath>
#include <limits>

#include "tensor/ops/dropout.h"
#include "tests/support/ops.h"
#include "tests/support/positions.h"

namespace mcpp::test {

struct AttentionSizes {
  i64 queries, keys, batch, heads, kv_heads, dim;
  i64 value_dim = 0;  // 0: dim

  i64 values() const { return value_dim > 0 ? value_dim : dim; }
};
struct AttentionCase {
  AttentionSizes size;
  PositionRanges queries = {}, keys = {};
  float dropout = 0;
  float magnitude = 1;  // of q and k
  i64 documents = 0;    // approximate number of documents per sample; 0: no starts
  u64 seed = 1;
  i64 window = 0;
  double soft_cap = 0;
};

/// Values of heads on the host.
struct HeadNumbers {
  explicit HeadNumbers(const Heads& x) : heads(x), all(to_doubles(x.base)) {}
  double operator()(i64 s, i64 b, i64 head, i64 d) const {
    return all[static_cast<std::size_t>(heads.offset + s * heads.seq_stride + b * heads.batch_stride +
                                        head / heads.group_size * heads.group_stride +
                                        head % heads.group_size * heads.head_dim + d)];
  }
  Heads heads;
  Numbers all;
};

inline Heads dense_heads(const Tensor& x) {  // [s, b, heads, dim]
  return mcpp::dense_heads(x, x.dim(2));
}

/// Inputs, outputs and gradients of one call. Outputs start as NaN. Tensors are placed by tensor_of() with `first`.
struct AttentionCall {
  QkvHeads x, dx;
  AttentionResult y;
  Tensor dout;
  AttentionOptions options;
  std::vector<double> sinks = {};  // of each query head, for the reference; empty: none

  AttentionCall(const AttentionCase& c, DType type, Device& device, i64 first = 1) {
    const AttentionSizes& n = c.size;
    const Shape queries{n.queries, n.batch, n.heads, n.dim}, keys{n.keys, n.batch, n.kv_heads, n.dim},
        values{n.keys, n.batch, n.kv_heads, n.values()};
    x.q = dense_heads(random_tensor(queries, type, device, c.seed, c.magnitude, first));
    x.k = dense_heads(random_tensor(keys, type, device, c.seed + 1, c.magnitude, first));
    x.v = dense_heads(random_tensor(values, type, device, c.seed + 2, 1, first));
    dx.q = dense_heads(garbage(queries, type, device, first));
    dx.k = dense_heads(garbage(keys, type, device, first)), dx.v = dense_heads(garbage(values, type, device, first));
    make_outputs(c, device, first);
  }
  /// Returns a call with views into fused tensors, for equal numbers of queries and keys, and values not wider than
  /// keys.
  static AttentionCall packed(const AttentionCase& c, DType type, Device& device, i64 first = 1) {
    AttentionCall call(c, type, device, first);
    const AttentionSizes& n = c.size;
    const Shape fused{n.queries, n.batch, n.kv_heads, n.heads / n.kv_heads + 2, n.dim};
    call.x = packed_heads(random_tensor(fused, type, device, 4, 1, first));
    call.dx = packed_heads(garbage(fused, type, device, first));
    call.x.v.head_dim = call.dx.v.head_dim = n.values();
    return call;
  }
  void run() {
    ops::attention(x, options, y);
    ops::attention_backward(dout, x, y, options, dx);
  }

 private:
  void make_outputs(const AttentionCase& c, Device& device, i64 first) {
    const AttentionSizes& n = c.size;
    const DType type = x.q.base.dtype();
    y.out = garbage({n.queries, n.batch, n.heads * n.values()}, type, device, first);
    y.lse = garbage({n.batch, n.heads, n.queries}, type == DType::F64 ? type : DType::F32, device, first);
    dout = random_tensor(y.out.shape(), type, device, 5, 1, first);
    options.softmax_scale = 1 / std::sqrt(static_cast<double>(n.dim));
    options.queries.ranges = c.queries, options.keys = c.keys, options.window = c.window;
    options.soft_cap = c.soft_cap;
    if (c.documents > 0)
      options.queries.starts = random_starts(c.queries, n.queries, n.batch, c.documents, c.seed, device);
    options.dropout = {.p = c.dropout, .key = 77, .samples = {}, .positions = {}, .first_column = 3};
    for (i64 b = 0; b < n.batch; ++b) options.dropout.samples.push_back((i64{1} << 33) + 5 * b);
  }
};

inline double keep_factor(const Dropout& d, i64 b, i64 head, i64 position, i64 key) {
  if (d.p == 0) return 1;
  const Philox4 words = philox4x32(philox_key(d.key, "attention", static_cast<u64>(3 + head)),
                                   dropout_counter(d.samples[static_cast<std::size_t>(b)], position, key / 4));
  return words[static_cast<std::size_t>(key % 4)] >= dropout_threshold(d.p) ? dropout_scale(d.p) : 0;
}

/// Reference attention of each (batch column, query head, query) in fp64.
struct AttentionTruth {
  std::vector<double> out, lse, dq, dk, dv;  // in the layout of the dense tensors
  std::vector<double> d_sinks;

  explicit AttentionTruth(const AttentionCall& c)
      : q_(c.x.q), k_(c.x.k), v_(c.x.v), dout_(to_doubles(c.dout)), starts_(starts_of(c)) {
    const i64 dim = c.x.q.head_dim, value_dim = c.x.v.head_dim, b = c.x.q.batch;
    const Heads &q = c.x.q, &k = c.x.k;
    out.resize(static_cast<std::size_t>(q.seq * b * q.heads * value_dim));
    dq.resize(static_cast<std::size_t>(q.seq * b * q.heads * dim));
    lse.resize(static_cast<std::size_t>(q.seq * b * q.heads));
    dk.resize(static_cast<std::size_t>(k.seq * b * k.heads * dim));
    dv.resize(static_cast<std::size_t>(k.seq * b * k.heads * value_dim));
    d_sinks.resize(c.sinks.size());
    for (i64 i = 0; i < q.seq * b * q.heads; ++i) add(c, i / q.heads / b, i / q.heads % b, i % q.heads);
  }

 private:
  static std::vector<i32> starts_of(const AttentionCall& c) {
    const Tensor& starts = c.options.queries.starts;
    return starts.defined() ? read_values<i32>(starts)
                            : std::vector<i32>(static_cast<std::size_t>(c.x.q.seq * c.x.q.batch), 0);
  }

  /// Returns the keys visible to query s of sample b: those of its document up to its own position, within the window.
  std::vector<i64> seen_keys(const AttentionCall& c, i64 s, i64 b) const {
    std::vector<i64> seen;
    for (i64 k = 0; k < c.x.k.seq; ++k) {
      const i64 position = c.options.keys.at(k), query = c.options.queries.ranges.at(s), window = c.options.window;
      if (starts_[static_cast<std::size_t>(s * c.x.q.batch + b)] <= position && position <= query &&
          (window == 0 || query - position < window))
        seen.push_back(k);
    }
    return seen;
  }

  void add(const AttentionCall& c, i64 s, i64 b, i64 head) {
    const auto& [q, k_heads, v_heads] = c.x;
    const i64 dim = q.head_dim, value_dim = v_heads.head_dim, kv_head = head / (q.heads / k_heads.heads);
    const i64 out_row = row(q, s, b, head) / dim * value_dim;
    const std::vector<i64> seen = seen_keys(c, s, b);
    const double scale = c.options.softmax_scale, cap = c.options.soft_cap;
    std::vector<double> p, dp, slopes;
    double largest = -std::numeric_limits<double>::infinity(), sum = 0, mean = 0;
    for (const i64 k : seen) {
      double dot = 0, ddot = 0;
      for (i64 d = 0; d < dim; ++d) dot += q_(s, b, head, d) * k_(k, b, kv_head, d);
      for (i64 d = 0; d < value_dim; ++d) ddot += at(dout_, out_row + d) * v_(k, b, kv_head, d);
      const double t = cap > 0 ? std::tanh(scale * dot / cap) : 0;
      p.push_back(cap > 0 ? cap * t : scale * dot), dp.push_back(ddot), slopes.push_back(scale * (1 - t * t));
      largest = std::max(largest, p.back());
    }
    const double sink = c.sinks.empty() ? -HUGE_VAL : c.sinks[static_cast<std::size_t>(head)];
    largest = std::max(largest, sink);
    if (!c.sinks.empty()) sum += std::exp(sink - largest);
    for (double& x : p) sum += x = std::exp(x - largest);
    lse[static_cast<std::size_t>((b * q.heads + head) * q.seq + s)] = largest + std::log(sum);
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const double keep =
          keep_factor(c.options.dropout, b, head, c.options.queries.ranges.at(s), c.options.keys.at(seen[i]));
      p[i] /= sum, dp[i] *= keep;
      mean += p[i] * dp[i];
      for (i64 d = 0; d < value_dim; ++d) {
        at(out, out_row + d) += p[i] * keep * v_(seen[i], b, kv_head, d);
        at(dv, row(v_heads, seen[i], b, kv_head) + d) += p[i] * keep * at(dout_, out_row + d);
      }
    }
    if (!c.sinks.empty()) at(d_sinks, head) -= std::exp(sink - largest) / sum * mean;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const double ds = slopes[i] * p[i] * (dp[i] - mean);
      for (i64 d = 0; d < dim; ++d) {
        at(dq, row(q, s, b, head) + d) += ds * k_(seen[i], b, kv_head, d);
        at(dk, row(k_heads, seen[i], b, kv_head) + d) += ds * q_(s, b, head, d);
      }
    }
  }
  static i64 row(const Heads& x, i64 s, i64 b, i64 head) { return ((s * x.batch + b) * x.heads + head) * x.head_dim; }
  static double& at(std::vector<double>& x, i64 i) { return x[static_cast<std::size_t>(i)]; }

  HeadNumbers q_, k_, v_;
  Numbers dout_;
  std::vector<i32> starts_;
};

/// Returns the largest error, relative to the value itself or to the root mean square of all values, whichever is
/// larger. The error of a wrong infinity is infinite.
inline double attention_error(const std::vector<double>& truth, const auto& value) {
  double squares = 0, largest = 0;
  for (double x : truth) squares += std::isinf(x) ? 0 : x * x;
  const double typical = std::max(0.1, std::sqrt(squares / static_cast<double>(truth.size())));
  for (std::size_t i = 0; i < truth.size(); ++i) {
    const double x = value(static_cast<i64>(i));
    if (x == truth[i]) continue;
    const double e = std::abs(x - truth[i]) / (std::isinf(truth[i]) ? 1 : std::max(typical, std::abs(truth[i])));
    if (!(e <= largest)) largest = e;  // also true for NaN
  }
  return largest;
}
inline double attention_error(const std::vector<double>& truth, const Tensor& value) {
  const Numbers all = to_doubles(value);
  return attention_error(truth, [&](i64 i) { return all[static_cast<std::size_t>(i)]; });
}
inline double attention_error(const std::vector<double>& truth, const Heads& x) {
  const HeadNumbers value(x);
  return attention_error(truth, [&](i64 i) {
    const i64 d = i % x.head_dim, head = i / x.head_dim % x.heads, b = i / x.head_dim / x.heads % x.batch;
    return value(i / x.head_dim / x.heads / x.batch, b, head, d);
  });
}

struct AttentionTolerance {
  double out, lse, gradient;
};
inline AttentionTolerance attention_tolerance(DType type) {
  if (type == DType::F64) return {1e-13, 1e-13, 1e-12};
  if (type == DType::F32) return {1e-5, 2e-6, 2e-5};
  if (type == DType::F16) return {0.004, 2e-5, 0.0125};
  return {0.03, 2e-5, 0.1};  // gradients start from the rounded output: dout * out cancels
}

inline void expect_truth(const AttentionCall& call, const AttentionTolerance& t) {
  const AttentionTruth truth(call);
  EXPECT_LT(attention_error(truth.out, call.y.out), t.out);
  EXPECT_LT(attention_error(truth.lse, call.y.lse), t.lse);
  EXPECT_LT(attention_error(truth.dq, call.dx.q), t.gradient) << "dq";
  EXPECT_LT(attention_error(truth.dk, call.dx.k), t.gradient) << "dk";
  EXPECT_LT(attention_error(truth.dv, call.dx.v), t.gradient) << "dv";
}

inline std::string describe(const AttentionCase& c, DType type) {
  const AttentionSizes& n = c.size;
  return str(name_of(type), ": ", n.queries, " queries at ", text_of(c.queries), ", ", n.keys, " keys at ",
             text_of(c.keys), ", batch ", n.batch, ", heads ", n.heads, "/", n.kv_heads, " of ", n.dim, " and ",
             n.values(), ", dropout ", c.dropout, ", ", c.documents, " documents, seed ", c.seed, ", window ",
             c.window);
}

}  // namespace mcpp::test
