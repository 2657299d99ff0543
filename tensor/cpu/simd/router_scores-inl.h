// The scores of a row of a router's logits, a few hundred at most: it is read into the first cache once and swept
// there.
#if defined(MCPP_TENSOR_CPU_ROUTER_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MCPP_TENSOR_CPU_ROUTER_SCORES_INL_H_
#undef MCPP_TENSOR_CPU_ROUTER_SCORES_INL_H_
#else
#define MCPP_TENSOR_CPU_ROUTER_SCORES_INL_H_
#endif

#include <cmath>

#include "tensor/cpu/simd/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// What sums of sigmoids are divided with, so that 0 / 0 is none.
template <class L>
inline constexpr L kTiny = static_cast<L>(1e-20);

/// to[n] = f(x), f working on vectors, and the sum of all; to may be x.
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

/// to[n] = softmax(x), which may be the same; returns logsumexp(x).
template <class L>
L softmax_of_row(const L* x, i64 n, L* to) {
  const LaneTag<L> d;
  const L largest = largest_of(d, x, n);
  const L sum = map_and_sum(x, n, to, [=](auto v) { return exp_of(d, hn::Sub(v, hn::Set(d, largest))); });
  divide(to, n, sum);
  return largest + std::log(sum);
}

/// to[n] = sigmoid(x), which may be the same; returns their sum.
template <class L>
L sigmoid_of_row(const L* x, i64 n, L* to) {
  const LaneTag<L> d;
  return map_and_sum(x, n, to, [=](auto v) { return logistic(d, v); });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // MCPP_TENSOR_CPU_ROUTER_SCORES_INL_H_
