// Terms of load-balancing losses: sums of scores over tokens, and their gradient.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/routing_losses.cpp"
#include <vector>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/partial_sums-inl.h"
#include "tensor/cpu/simd/router_scores-inl.h"
#include "tensor/dtype.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Writes the scores of all experts used by balancing losses to `to`; returns logsumexp(x).
template <class L>
L balanced_scores_of_row(RouterScore score, const L* x, i64 n, L* to) {
  const L lse = softmax_of_row(x, n, to);
  if (score != RouterScore::Softmax) divide(to, n, scores_of_row(score, x, n, to) + kTiny<L>);
  return lse;
}

void router_score_sums(const Tensor& logits, RouterScore score, Tensor& sums, Tensor& squares) {
  on_accumulate_dtype(logits.dtype(), [&]<class L>() {
    const LaneTag<double> d;
    const i64 n = logits.dim(1), rows = logits.dim(0), batch = sums.dim(0), all = batch * n;
    const L* x = logits.data<L>();
    const PartialSums<double> partial(rows, all + 1, sums);
    parallel_for(cpu(logits), rows, partial.rows_per_chunk, [&](i64 begin, i64 end) {
      std::vector<L> scores(static_cast<std::size_t>(n));
      double* chunk = partial.of_row(begin);
      std::fill_n(chunk, all + 1, 0.0);
      for (i64 r = begin; r < end; ++r) {
        const auto lse = static_cast<double>(balanced_scores_of_row(score, x + r * n, n, scores.data()));
        chunk[all] += lse * lse;
        sweep(d, 0, n, [&, to = chunk + r % batch * n](i64 i, auto lanes) {
          store(hn::Add(load(d, to + i, lanes), load(d, scores.data() + i, lanes)), d, to + i, lanes);
        });
      }
    });
    partial.add_to(sums, 0, 0);
    partial.add_to(squares, all, 0);
  });
}

/// Adds to dx the gradient by a row x of logits of f . scores, and of z logsumexp(x)^2. p, q and slopes are scratch of
/// n values each.
template <class L>
void score_sums_backward_of_row(RouterScore score, const L* x, const L* f, L z, i64 n, L* p, L* q, L* slopes, L* dx) {
  const LaneTag<L> d;
  const L lse = softmax_of_row(x, n, p);
  const bool is_softmax = score == RouterScore::Softmax;
  const L divisor = is_softmax ? L{1} : scores_of_row(score, x, n, q) + kTiny<L>;
  const L* y = is_softmax ? p : q;
  for (i64 i = 0; i < n; ++i) slopes[i] = relative_slope(score, y[i]);
  Sum<LaneTag<L>> sum;
  sweep_slots(d, 0, n, [&](i64 i, auto lanes, int slot) {
    sum.add_product(load(d, y + i, lanes), load(d, f + i, lanes), slot);
  });
  const auto mean = hn::Set(d, sum.total() / divisor), inverse = hn::Set(d, 1 / divisor);
  const auto of_lse = hn::Set(d, 2 * z * lse);
  sweep(d, 0, n, [=](i64 i, auto lanes) {
    const auto s = load(d, y + i, lanes);
    // Derivative of a score by its logit, without the term common to the row.
    const auto slope = hn::Mul(hn::Mul(s, inverse), load(d, slopes + i, lanes));
    const auto of_scores = hn::Mul(hn::Sub(load(d, f + i, lanes), mean), slope);
    const auto gradient = hn::MulAdd(load(d, p + i, lanes), of_lse, of_scores);
    store(hn::Add(load(d, dx + i, lanes), gradient), d, dx + i, lanes);
  });
}

/// Returns the factors of the scores [b, n], scaled.
template <class L>
std::vector<L> scaled_factors(const ops::RouterLoss& loss, double scale, i64 n) {
  if (!loss.factors.defined()) return std::vector<L>(static_cast<std::size_t>(n), 0);
  std::vector<L> scaled;
  for (i64 i = 0; i < loss.factors.numel(); ++i)
    scaled.push_back(static_cast<L>(loss.factors.data<double>()[i] * scale));
  return scaled;
}

void router_score_sums_backward(const Tensor& logits, RouterScore score, const ops::RouterLoss& loss,
                                Tensor& d_logits) {
  on_accumulate_dtype(logits.dtype(), [&]<class L>() {
    const i64 n = logits.dim(1), batch = loss.factors.defined() ? loss.factors.dim(0) : 1;
    const double multiplier = loss.multiplier.defined() ? *loss.multiplier.data<double>() : 1;
    const auto z = static_cast<L>(loss.z_scale * multiplier);
    const L* x = logits.data<L>();
    L* dx = d_logits.data<L>();
    const std::vector<L> f = scaled_factors<L>(loss, loss.scale * multiplier, n);
    parallel_for(cpu(logits), logits.dim(0), rows_per_chunk(n), [&](i64 begin, i64 end) {
      std::vector<L> p(static_cast<std::size_t>(n)), q(p), slopes(p);
      for (i64 r = begin; r < end; ++r) {
        score_sums_backward_of_row(score, x + r * n, f.data() + r % batch * n, z, n, p.data(), q.data(), slopes.data(),
                                   dx + r * n);
      }
    });
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(router_score_sums);
HWY_EXPORT(router_score_sums_backward);

template <>
void Kernels<DeviceType::Cpu>::router_score_sums(const Tensor& logits, RouterScore score, Tensor& sums,
                                                 Tensor& squares) {
  HWY_DYNAMIC_DISPATCH(router_score_sums)(logits, score, sums, squares);
}

template <>
void Kernels<DeviceType::Cpu>::router_score_sums_backward(const Tensor& logits, RouterScore score,
                                                          const ops::RouterLoss& loss, Tensor& d_logits) {
  HWY_DYNAMIC_DISPATCH(router_score_sums_backward)(logits, score, loss, d_logits);
}

}  // namespace mcpp
#endif  // HWY_ONCE
