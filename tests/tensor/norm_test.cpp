#include "tests/support/gradcheck.h"
#include "tests/support/ops.h"

namespace mcpp::test::norm_test {
namespace {

class NormOpsTest : public Ops {};
INSTANTIATE_TEST_SUITE_P(Types, NormOpsTest, every_type(), ops_name);

constexpr double kEps = 1e-5;

/// Either norm of one row and its derivatives in double precision. RMSNorm has no mean.
struct NormReference {
  i64 rows, n;
  bool has_mean;
  Numbers mean, rstd, y, dx, dw, db;

  NormReference(i64 row_count, i64 columns, bool centered, const Numbers& x, const Numbers& w, const Numbers& b,
                const Numbers& dy)
      : rows(row_count), n(columns), has_mean(centered), dw(w.size()), db(w.size()) {
    for (i64 r = 0; r < rows; ++r) add_row(x.data() + r * n, w, b, dy.data() + r * n);
  }

  void add_row(const double* x, const Numbers& w, const Numbers& b, const double* dy) {
    const double size = static_cast<double>(n);
    double m = 0, variance = 0;
    for (i64 i = 0; i < n; ++i) m += x[i] / size;
    if (!has_mean) m = 0;
    for (i64 i = 0; i < n; ++i) variance += (x[i] - m) * (x[i] - m) / size;
    const double inverse = 1 / std::sqrt(variance + kEps);
    mean.push_back(m);
    rstd.push_back(inverse);
    double mean_g = 0, mean_gx = 0;
    for (i64 i = 0; i < n; ++i) {
      const std::size_t k = static_cast<std::size_t>(i);
      const double xhat = (x[i] - m) * inverse;
      y.push_back(xhat * w[k] + (has_mean ? b[k] : 0));
      dw[k] += dy[i] * xhat;
      db[k] += dy[i];
      mean_g += has_mean ? dy[i] * w[k] / size : 0;
      mean_gx += dy[i] * w[k] * xhat / size;
    }
    for (i64 i = 0; i < n; ++i)
      dx.push_back(inverse * (dy[i] * w[static_cast<std::size_t>(i)] - mean_g - (x[i] - m) * inverse * mean_gx));
  }
};

Numbers plus(Numbers a, const Numbers& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

/// Inputs of one size. A row offset makes the mean matter.
struct NormInputs {
  Shape shape;
  Numbers x, w, b, dy, residual, old;

  NormInputs(i64 rows, i64 n, DType t, DType wide)
      : shape{rows, n},
        x(test::normals(rows * n, 1, t, 2)),
        w(test::normals(n, 2, t)),
        b(test::normals(n, 3, t)),
        dy(test::normals(rows * n, 4, t)),
        residual(test::normals(rows * n, 5, t)),
        old(test::normals(n, 6, wide)) {
    for (double& v : x) v = rounded(v + 3, t);
  }
};

TEST_P(NormOpsTest, LayerNormAndBackwardMatchReference) {
  for (const auto [rows, n] : kSizes) {
    const NormInputs in(rows, n, dtype(), accumulate_dtype());
    const auto outputs = run([&](Device& device) {
      const Tensor x = tensor_of(in.x, in.shape, dtype(), device), w = tensor_of(in.w, {n}, dtype(), device),
                   b = tensor_of(in.b, {n}, dtype(), device), dy = tensor_of(in.dy, in.shape, dtype(), device);
      Tensor y = garbage(in.shape, dtype(), device), mean = garbage({rows}, accumulate_dtype(), device),
             rstd = garbage({rows}, accumulate_dtype(), device);
      ops::layer_norm(x, w, b, kEps, y, mean, rstd);
      Tensor dx = garbage(in.shape, dtype(), device), dw = garbage({n}, accumulate_dtype(), device),
             db = garbage({n}, accumulate_dtype(), device);
      NormGradients fresh{.dx = dx, .dw = dw, .db = db};
      ops::layer_norm_backward(dy, {x, w, mean, rstd}, fresh);
      Tensor added = tensor_of(in.residual, in.shape, dtype(), device),
             dw2 = tensor_of(in.old, {n}, accumulate_dtype(), device),
             db2 = tensor_of(in.old, {n}, accumulate_dtype(), device);
      NormGradients sums{.dx = added, .add_to_dx = true, .dw = dw2, .beta_dw = 1, .db = db2, .beta_db = 1};
      ops::layer_norm_backward(dy, {x, w, mean, rstd}, sums);
      return std::vector{y, mean, rstd, dx, dw, db, added, dw2, db2};
    });
    const NormReference expected(rows, n, true, in.x, in.w, in.b, in.dy);
    const double sum_magnitude = 4 * std::sqrt(static_cast<double>(rows)) + 4;
    // For one column, x - mean is 0, and rstd is large relative to the rounding of the mean.
    const double relative = 10 * tolerance(dtype());
    expect_close(outputs[0], expected.y, relative, 1, "y");
    expect_close(outputs[1], expected.mean, "mean");
    expect_close(outputs[2], expected.rstd, 4 * tolerance(accumulate_dtype()), 1, "rstd");
    expect_close(outputs[3], expected.dx, relative, n == 1 ? 1000 : 1, "dx");
    expect_close(outputs[4], expected.dw, 4 * tolerance(accumulate_dtype()), sum_magnitude, "dw");
    expect_close(outputs[5], expected.db, 4 * tolerance(accumulate_dtype()), sum_magnitude, "db");
    expect_close(outputs[6], plus(expected.dx, in.residual), relative, n == 1 ? 1000 : 1, "dx added");
    expect_close(outputs[7], plus(expected.dw, in.old), 4 * tolerance(accumulate_dtype()), sum_magnitude, "dw added");
    expect_close(outputs[8], plus(expected.db, in.old), 4 * tolerance(accumulate_dtype()), sum_magnitude, "db added");
  }
}

TEST_P(NormOpsTest, RmsNormAndBackwardMatchReference) {
  for (const auto [rows, n] : kSizes) {
    const NormInputs in(rows, n, dtype(), accumulate_dtype());
    const auto outputs = run([&](Device& device) {
      const Tensor x = tensor_of(in.x, in.shape, dtype(), device), w = tensor_of(in.w, {n}, dtype(), device),
                   dy = tensor_of(in.dy, in.shape, dtype(), device);
      Tensor y = garbage(in.shape, dtype(), device), rstd = garbage({rows}, accumulate_dtype(), device);
      ops::rms_norm(x, w, kEps, y, rstd);
      Tensor dx = garbage(in.shape, dtype(), device), dw = garbage({n}, accumulate_dtype(), device);
      NormGradients fresh{.dx = dx, .dw = dw};
      ops::rms_norm_backward(dy, {x, w, {}, rstd}, fresh);
      Tensor added = tensor_of(in.residual, in.shape, dtype(), device),
             dw2 = tensor_of(in.old, {n}, accumulate_dtype(), device);
      NormGradients sums{.dx = added, .add_to_dx = true, .dw = dw2, .beta_dw = 1};
      ops::rms_norm_backward(dy, {x, w, {}, rstd}, sums);
      return std::vector{y, rstd, dx, dw, added, dw2};
    });
    const NormReference expected(rows, n, false, in.x, in.w, in.b, in.dy);
    const double sum_magnitude = 4 * std::sqrt(static_cast<double>(rows)) + 4;
    const double relative = 4 * tolerance(dtype());
    expect_close(outputs[0], expected.y, relative, 1, "y");
    expect_close(outputs[1], expected.rstd, 4 * tolerance(accumulate_dtype()), 1, "rstd");
    expect_close(outputs[2], expected.dx, relative, 1, "dx");
    expect_close(outputs[3], expected.dw, 4 * tolerance(accumulate_dtype()), sum_magnitude, "dw");
    expect_close(outputs[4], plus(expected.dx, in.residual), relative, 1, "dx added");
    expect_close(outputs[5], plus(expected.dw, in.old), 4 * tolerance(accumulate_dtype()), sum_magnitude, "dw added");
  }
}

/// Weights stored as their difference from 1.
TEST_P(NormOpsTest, AddsOffsetToWeights) {
  const i64 rows = 37, n = 67;
  const NormInputs in(rows, n, dtype(), accumulate_dtype());
  const auto outputs = run([&](Device& device) {
    const Tensor x = tensor_of(in.x, in.shape, dtype(), device), w = tensor_of(in.w, {n}, dtype(), device),
                 b = tensor_of(in.b, {n}, dtype(), device), dy = tensor_of(in.dy, in.shape, dtype(), device);
    NormRule rule(kEps);
    rule.weight_offset = 1;
    std::vector<Tensor> results;
    for (const bool has_mean : {false, true}) {
      Tensor y = garbage(in.shape, dtype(), device), mean = garbage({rows}, accumulate_dtype(), device),
             rstd = garbage({rows}, accumulate_dtype(), device);
      Tensor dx = garbage(in.shape, dtype(), device), dw = garbage({n}, accumulate_dtype(), device),
             db = Tensor::like(dw);
      NormGradients gradients{.dx = dx, .dw = dw, .db = db};
      if (has_mean) {
        ops::layer_norm(x, w, b, rule, y, mean, rstd);
        ops::layer_norm_backward(dy, {.x = x, .w = w, .mean = mean, .rstd = rstd, .weight_offset = 1}, gradients);
      } else {
        ops::rms_norm(x, w, rule, y, rstd);
        ops::rms_norm_backward(dy, {.x = x, .w = w, .mean = {}, .rstd = rstd, .weight_offset = 1}, gradients);
      }
      for (const Tensor& t : {y, dx, dw}) results.push_back(t);
    }
    return results;
  });
  for (const bool has_mean : {false, true}) {
    const NormReference expected(rows, n, has_mean, in.x, plus(in.w, Numbers(in.w.size(), 1)), in.b, in.dy);
    const std::size_t first = has_mean ? 3 : 0;
    expect_close(outputs[first], expected.y, 10 * tolerance(dtype()), 1, "y");
    expect_close(outputs[first + 1], expected.dx, 10 * tolerance(dtype()), 1, "dx");
    expect_close(outputs[first + 2], expected.dw, 4 * tolerance(accumulate_dtype()), 4 * std::sqrt(37.0) + 4, "dw");
  }
}

/// Emulates two ranks with half of the columns each.
TEST_P(NormOpsTest, RmsNormSupportsShardedColumns) {
  const i64 rows = 33, n = 40, part = n / 2;
  const NormInputs in(rows, n, dtype(), accumulate_dtype());
  const auto columns = [&](const Numbers& x, i64 first, i64 width) {
    Numbers selected;
    for (i64 r = 0; r < static_cast<i64>(x.size()) / n; ++r)
      for (i64 i = 0; i < width; ++i) selected.push_back(x[static_cast<std::size_t>(r * n + first + i)]);
    return selected;
  };
  const auto outputs = run([&](Device& device) {
    std::vector<Tensor> x, w, dy, results;
    for (const i64 first : {i64{0}, part}) {
      x.push_back(tensor_of(columns(in.x, first, part), {rows, part}, dtype(), device));
      w.push_back(tensor_of(columns(in.w, first, part), {part}, dtype(), device));
      dy.push_back(tensor_of(columns(in.dy, first, part), {rows, part}, dtype(), device));
    }
    Tensor squares = garbage({rows}, accumulate_dtype(), device), dots = Tensor::like(squares),
           more = Tensor::like(squares);
    ops::row_dots(x[0], x[0], nullptr, 0, squares);
    ops::row_dots(x[1], x[1], nullptr, 0, more);
    ops::add_to(more, squares);
    ops::row_dots(dy[0], x[0], &w[0], 1, dots);
    ops::row_dots(dy[1], x[1], &w[1], 1, more);
    ops::add_to(more, dots);
    NormRule rule(kEps);
    rule.weight_offset = 1, rule.squares = squares, rule.all_columns = n;
    for (const std::size_t i : {0u, 1u}) {
      Tensor y = garbage({rows, part}, dtype(), device), rstd = garbage({rows}, accumulate_dtype(), device);
      Tensor dx = garbage({rows, part}, dtype(), device), dw = garbage({part}, accumulate_dtype(), device);
      ops::rms_norm(x[i], w[i], rule, y, rstd);
      NormGradients gradients{.dx = dx, .dw = dw};
      ops::rms_norm_backward(
          dy[i], {.x = x[i], .w = w[i], .mean = {}, .rstd = rstd, .weight_offset = 1, .dots = dots, .all_columns = n},
          gradients);
      for (const Tensor& t : {y, rstd, dx, dw}) results.push_back(t);
    }
    return results;
  });
  const NormReference expected(rows, n, false, in.x, plus(in.w, Numbers(in.w.size(), 1)), in.b, in.dy);
  for (const i64 i : {0, 1}) {
    const std::size_t first = static_cast<std::size_t>(4 * i);
    expect_close(outputs[first], columns(expected.y, i * part, part), 10 * tolerance(dtype()), 1, "y");
    expect_close(outputs[first + 1], expected.rstd, 4 * tolerance(accumulate_dtype()), 1, "rstd");
    expect_close(outputs[first + 2], columns(expected.dx, i * part, part), 10 * tolerance(dtype()), 1, "dx");
    expect_close(outputs[first + 3], columns(expected.dw, i * part, part), 4 * tolerance(accumulate_dtype()), 30, "dw");
  }
}

TEST_P(NormOpsTest, PropagateNaN) {
  Numbers x = normals(4 * 33, 1);
  x[40] = std::nan("");
  const auto outputs = run([&](Device& device) {
    const Tensor t = tensor_of(x, {4, 33}, dtype(), device), w = tensor_of(Numbers(33, 1), {33}, dtype(), device);
    Tensor y = Tensor::like(t), z = Tensor::like(t), mean = garbage({4}, accumulate_dtype(), device),
           rstd = Tensor::like(mean);
    ops::layer_norm(t, w, w, kEps, y, mean, rstd);
    ops::rms_norm(t, w, kEps, z, rstd);
    return std::vector{y, z};
  });
  for (const Tensor& y : outputs) {
    const Numbers values = to_doubles(y);
    for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(std::isnan(values[i]), i / 33 == 1) << i;
  }
}

TEST(NormGradientTest, MatchesFiniteDifferences) {
  CpuDevice device;
  const i64 rows = 5, n = 19;
  const auto random = [&](Shape shape, u64 seed) { return random_tensor(shape, DType::F64, device, seed); };
  const Tensor x = random({rows, n}, 1), w = random({n}, 2), b = random({n}, 3), dy = random({rows, n}, 4);
  Tensor y = Tensor::like(x), mean = Tensor::like(x, {rows}), rstd = Tensor::like(mean);
  Tensor dx = Tensor::like(x), dw = Tensor::like(w), db = Tensor::like(w);
  const auto layer_norm = [&] {
    ops::layer_norm(x, w, b, kEps, y, mean, rstd);
    return dot(y, dy);
  };
  layer_norm();
  NormGradients gradients{.dx = dx, .dw = dw, .db = db};
  ops::layer_norm_backward(dy, {x, w, mean, rstd}, gradients);
  expect_gradient(layer_norm, x, dx, "layer_norm dx");
  expect_gradient(layer_norm, w, dw, "layer_norm dw");
  expect_gradient(layer_norm, b, db, "layer_norm db");
  const auto rms_norm = [&] {
    ops::rms_norm(x, w, kEps, y, rstd);
    return dot(y, dy);
  };
  rms_norm();
  ops::rms_norm_backward(dy, {x, w, {}, rstd}, gradients);
  expect_gradient(rms_norm, x, dx, "rms_norm dx");
  expect_gradient(rms_norm, w, dw, "rms_norm dw");
}

}  // namespace
}  // namespace mcpp::test::norm_test
