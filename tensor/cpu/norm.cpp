// LayerNorm and RMSNorm. A row fits the L1 or L2 cache, so it is read from memory once regardless of the number of
// passes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/norm.cpp"
#include <cmath>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/partial_sums-inl.h"
#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Returns the mean of f(i, lanes) over [0, n); unused lanes of f are ignored.
template <class D, class F>
HWY_INLINE hn::TFromD<D> mean_of(D d, i64 n, F&& f) {
  Sum<D> sum;
  sweep_slots(d, 0, n,
              [&](i64 i, auto lanes, int slot) { sum.add(used_or(d, f(i, lanes), hn::Zero(d), lanes), slot); });
  return sum.total() / static_cast<hn::TFromD<D>>(n);
}

/// Loads lanes of the weights from `w` on.
template <class D, class T>
HWY_INLINE hn::Vec<D> weights(D d, const T* w, hn::TFromD<D> offset, auto lanes) {
  return hn::Add(load(d, w, lanes), hn::Set(d, offset));
}

template <class L>
L inverse_root(L variance, double eps) {
  return 1 / std::sqrt(variance + static_cast<L>(eps));
}

void layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, const NormRule& rule, Tensor& y, Tensor& mean,
                Tensor& rstd) {
  on_float(x.dtype(), [&]<class T>() {
    const LaneTag<T> d;
    const i64 n = x.dim(-1);
    const double eps = rule.eps;
    const auto offset = static_cast<Lane<T>>(rule.weight_offset);
    const T *xs = x.data<T>(), *ws = w.data<T>(), *bs = b.data<T>();
    T* ys = y.data<T>();
    auto *means = mean.data<Lane<T>>(), *rstds = rstd.data<Lane<T>>();
    const auto normalize_row = [=](const T* from, T* to, Lane<T>& m, Lane<T>& inverse) {
      m = mean_of(d, n, [=](i64 i, auto lanes) { return load(d, from + i, lanes); });
      const auto center = hn::Set(d, m);
      inverse = inverse_root(mean_of(d, n,
                                     [=](i64 i, auto lanes) {
                                       const auto v = hn::Sub(load(d, from + i, lanes), center);
                                       return hn::Mul(v, v);
                                     }),
                             eps);
      const auto scale = hn::Set(d, inverse);
      sweep(d, 0, n, [=](i64 i, auto lanes) {
        const auto xhat = hn::Mul(hn::Sub(load(d, from + i, lanes), center), scale);
        store(hn::MulAdd(xhat, weights(d, ws + i, offset, lanes), load(d, bs + i, lanes)), d, to + i, lanes);
      });
    };
    parallel_for(cpu(x), row_count(x), rows_per_chunk(n), [=](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) normalize_row(xs + r * n, ys + r * n, means[r], rstds[r]);
    });
  });
}

void rms_norm(const Tensor& x, const Tensor& w, const NormRule& rule, Tensor& y, Tensor& rstd) {
  on_float(x.dtype(), [&]<class T>() {
    const LaneTag<T> d;
    const i64 n = x.dim(-1);
    const double eps = rule.eps;
    const auto offset = static_cast<Lane<T>>(rule.weight_offset), columns = static_cast<Lane<T>>(rule.all_columns);
    const auto* squares = rule.squares.defined() ? rule.squares.data<Lane<T>>() : nullptr;
    const T *xs = x.data<T>(), *ws = w.data<T>();
    T* ys = y.data<T>();
    auto* rstds = rstd.data<Lane<T>>();
    const auto mean_square = [=](const T* from) {
      return mean_of(d, n, [=](i64 i, auto lanes) {
        const auto v = load(d, from + i, lanes);
        return hn::Mul(v, v);
      });
    };
    const auto normalize_row = [=](i64 row, Lane<T>& inverse) {
      const T* from = xs + row * n;
      T* to = ys + row * n;
      inverse = inverse_root(squares ? squares[row] / columns : mean_square(from), eps);
      const auto scale = hn::Set(d, inverse);
      sweep(d, 0, n, [=](i64 i, auto lanes) {
        store(hn::Mul(hn::Mul(load(d, from + i, lanes), scale), weights(d, ws + i, offset, lanes)), d, to + i, lanes);
      });
    };
    parallel_for(cpu(x), row_count(x), rows_per_chunk(n), [=](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) normalize_row(r, rstds[r]);
    });
  });
}

void row_dots(const Tensor& a, const Tensor& b, const Tensor* w, double weight_offset, Tensor& dots) {
  on_float(a.dtype(), [&]<class T>() {
    const LaneTag<T> d;
    const i64 n = a.dim(-1);
    const T *as = a.data<T>(), *bs = b.data<T>(), *ws = w ? w->data<T>() : nullptr;
    const auto offset = static_cast<Lane<T>>(weight_offset);
    auto* sums = dots.data<Lane<T>>();
    parallel_for(cpu(a), row_count(a), rows_per_chunk(n), [=](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        Sum<LaneTag<T>> sum;
        sweep_slots(d, 0, n, [&](i64 i, auto lanes, int slot) {
          auto left = load(d, as + r * n + i, lanes);
          if (ws) left = hn::Mul(left, weights(d, ws + i, offset, lanes));
          sum.add_product(left, load(d, bs + r * n + i, lanes), slot);
        });
        sums[r] = sum.total();
      }
    });
  });
}

/// Inputs of the backward pass of either norm for one row; without a mean (RMSNorm) center is 0.
template <class T>
struct BackwardRow {
  const T *dy, *x, *w;
  Lane<T> center, rstd, offset;
  i64 n;
  bool has_mean;
  const Lane<T>* dot;  ///< dot product over all ranks' columns; null if the row is not sharded
  Lane<T> columns;

  template <class D>
  HWY_INLINE hn::Vec<D> xhat(D d, i64 i, auto lanes) const {
    return hn::Mul(hn::Sub(load(d, x + i, lanes), hn::Set(d, center)), hn::Set(d, rstd));
  }
};

/// Computes dx = rstd (g - mean(g) - xhat mean(g xhat)) with g = dy w, where only LayerNorm has mean(g); dw += dy xhat
/// and db += dy, or = in a chunk's first row.
template <class T>
void backward_row(const BackwardRow<T>& row, T* dx, bool add_to_dx, Lane<T>* dw, Lane<T>* db, float beta) {
  const LaneTag<T> d;
  Sum<LaneTag<T>> sum_g, sum_gx;
  sweep_slots(d, 0, row.n, [&](i64 i, auto lanes, int slot) {
    // Unused lanes of dy are 0, so they do not contribute to either sum.
    const auto g = hn::Mul(load(d, row.dy + i, lanes), weights(d, row.w + i, row.offset, lanes));
    sum_g.add(g, slot);
    sum_gx.add_product(g, row.xhat(d, i, lanes), slot);
  });
  const auto mean_g = hn::Set(d, row.has_mean ? sum_g.total() / static_cast<Lane<T>>(row.n) : Lane<T>{0});
  const auto mean_gx =
      hn::Set(d, row.dot ? *row.dot * row.rstd / row.columns : sum_gx.total() / static_cast<Lane<T>>(row.n));
  const auto rstd = hn::Set(d, row.rstd);
  sweep(d, 0, row.n, [=, &row](i64 i, auto lanes) {
    const auto dy = load(d, row.dy + i, lanes), xhat = row.xhat(d, i, lanes);
    const auto centered = hn::Sub(hn::Mul(dy, weights(d, row.w + i, row.offset, lanes)), mean_g);
    const auto old = add_to_dx ? load(d, dx + i, lanes) : hn::Zero(d);
    store(hn::MulAdd(rstd, hn::NegMulAdd(xhat, mean_gx, centered), old), d, dx + i, lanes);
    store(hn::MulAdd(dy, xhat, previous(d, dw + i, beta, lanes)), d, dw + i, lanes);
    if (row.has_mean) store(hn::Add(dy, previous(d, db + i, beta, lanes)), d, db + i, lanes);
  });
}

void norm_backward(const Tensor& dy, const NormForward& y, NormGradients& gradients, bool has_mean) {
  const Tensor& x = y.x;
  on_float(x.dtype(), [&]<class T>() {
    const i64 n = x.dim(-1), rows = row_count(x);
    const PartialSums<Lane<T>> partial(rows, has_mean ? 2 * n : n, gradients.dw);
    const T *dys = dy.data<T>(), *xs = x.data<T>(), *ws = y.w.data<T>();
    const auto *means = has_mean ? y.mean.data<Lane<T>>() : nullptr, *rstds = y.rstd.data<Lane<T>>();
    const auto* dots = y.dots.defined() ? y.dots.data<Lane<T>>() : nullptr;
    const auto offset = static_cast<Lane<T>>(y.weight_offset), columns = static_cast<Lane<T>>(y.all_columns);
    T* dxs = gradients.dx.data<T>();
    parallel_for(cpu(x), rows, partial.rows_per_chunk, [&](i64 begin, i64 end) {
      auto* sums = partial.of_row(begin);
      for (i64 r = begin; r < end; ++r) {
        const BackwardRow<T> row{.dy = dys + r * n,
                                 .x = xs + r * n,
                                 .w = ws,
                                 .center = has_mean ? means[r] : Lane<T>{0},
                                 .rstd = rstds[r],
                                 .offset = offset,
                                 .n = n,
                                 .has_mean = has_mean,
                                 .dot = dots ? dots + r : nullptr,
                                 .columns = columns};
        backward_row(row, dxs + r * n, gradients.add_to_dx, sums, sums + n, r == begin ? 0.0f : 1.0f);
      }
    });
    partial.add_to(gradients.dw, 0, gradients.beta_dw);
    if (has_mean) partial.add_to(gradients.db, n, gradients.beta_db);
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(layer_norm);
HWY_EXPORT(rms_norm);
HWY_EXPORT(row_dots);
HWY_EXPORT(norm_backward);

template <>
void Kernels<DeviceType::Cpu>::layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, const NormRule& rule,
                                          Tensor& y, Tensor& mean, Tensor& rstd) {
  HWY_DYNAMIC_DISPATCH(layer_norm)(x, w, b, rule, y, mean, rstd);
}

template <>
void Kernels<DeviceType::Cpu>::layer_norm_backward(const Tensor& dy, const NormForward& y, NormGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(norm_backward)(dy, y, gradients, true);
}

template <>
void Kernels<DeviceType::Cpu>::rms_norm(const Tensor& x, const Tensor& w, const NormRule& rule, Tensor& y,
                                        Tensor& rstd) {
  HWY_DYNAMIC_DISPATCH(rms_norm)(x, w, rule, y, rstd);
}

template <>
void Kernels<DeviceType::Cpu>::row_dots(const Tensor& a, const Tensor& b, const Tensor* w, double weight_offset,
                                        Tensor& dots) {
  HWY_DYNAMIC_DISPATCH(row_dots)(a, b, w, weight_offset, dots);
}

template <>
void Kernels<DeviceType::Cpu>::rms_norm_backward(const Tensor& dy, const NormForward& y, NormGradients& gradients) {
  HWY_DYNAMIC_DISPATCH(norm_backward)(dy, y, gradients, false);
}

}  // namespace mcpp
#endif  // HWY_ONCE
