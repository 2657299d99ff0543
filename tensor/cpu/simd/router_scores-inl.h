// Scores of one row of router logits. A row has at most a few hundred elements and stays in the L1 cache.
#if defined(MCPP_TENSOR_CPU_ROUTER_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MCPP_TENSOR_CPU_ROUTER_SCORES_INL_H_
#undef MCPP_TENSOR_CPU_ROUTER_SCORES_INL_H_
#else
#define MCPP_TENSOR_CPU_ROUTER_SCORES_INL_H_
#endif

#include <cmath>

#include "tensor/cpu/simd/math-inl.h"
#include "tensor/ops/ops.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Epsilon added to the sum of sigmoids before division, to avoid 0 / 0.
template <class L>
inline constexpr L kTiny = static_cast<L>(1e-20);

/// Computes to[n] = f(x), where f maps vectors, and returns the sum of the results; `to` may alias x.
template <class L, class F>
HWY_INLINE L map_and_sum(const L* x, i64 n, L* to, F&& f) {
  const LaneTag<L> d;
  Sum<LaneTag<L>> sum;
  sweep_slots(d, 0, n, [&](i64 i, auto lanes, int slot) {
    const auto y = f(load(d, x + i, lanes));
    store(y, d, to + i, lanes);
    sum.add(used_or(d, y, hn::Zero(d), lanes), slot);
  });
  return sum.total();
}

template <class L>
void divide(L* x, i64 n, L divisor) {
  const LaneTag<L> d;
  const auto inverse = hn::Set(d, 1 / divisor);
  sweep(d, 0, n, [=](i64 i, auto lanes) { store(hn::Mul(load(d, x + i, lanes), inverse), d, x + i, lanes); });
}

/// Computes to[n] = softmax(x) and returns logsumexp(x); `to` may alias x.
template <class L>
L softmax_of_row(const L* x, i64 n, L* to) {
  const LaneTag<L> d;
  const L largest = largest_of(d, x, n);
  const L sum = map_and_sum(x, n, to, [=](auto v) { return exp_of(d, hn::Sub(v, hn::Set(d, largest))); });
  divide(to, n, sum);
  return largest + std::log(sum);
}

/// Computes to[n] = sigmoid(x) and returns the sum of the results; `to` may alias x.
template <class L>
L sigmoid_of_row(const L* x, i64 n, L* to) {
  const LaneTag<L> d;
  return map_and_sum(x, n, to, [=](auto v) { return logistic(d, v); });
}

/// Computes to[n] = sqrt(log(1 + exp(x))) and returns the sum of the results; `to` may alias x.
template <class L>
L sqrt_softplus_of_row(const L* x, i64 n, L* to) {
  L sum = 0;
  for (i64 i = 0; i < n; ++i) {
    const L softplus = (x[i] > 0 ? x[i] : L{0}) + std::log1p(std::exp(-std::abs(x[i])));
    to[i] = std::sqrt(std::isnan(x[i]) ? x[i] : softplus);
    sum += to[i];
  }
  return sum;
}

/// Computes to[n], the scores of a function that maps each logit alone, and returns their sum; `to` may alias x.
template <class L>
L scores_of_row(RouterScore score, const L* x, i64 n, L* to) {
  return score == RouterScore::Sigmoid ? sigmoid_of_row(x, n, to) : sqrt_softplus_of_row(x, n, to);
}

/// Returns the derivative of the logarithm of a score y by its logit, without the part that normalization adds.
template <class L>
L relative_slope(RouterScore score, L y) {
  if (score == RouterScore::Softmax) return 1;
  if (score == RouterScore::Sigmoid) return 1 - y;
  const L square = y * y;  // log(1 + exp(x)), whose derivative is 1 - exp(-square)
  return square > 0 ? -std::expm1(-square) / (2 * square) : static_cast<L>(0.5);
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MCPP_TENSOR_CPU_ROUTER_SCORES_INL_H_
