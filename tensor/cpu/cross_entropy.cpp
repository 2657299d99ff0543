// Softmax cross entropy over vocabulary-sized rows. Each pass reads its inputs from memory once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/cross_entropy.cpp"
#include <cmath>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/math-inl.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

template <class L>
struct RowStats {
  L largest = -std::numeric_limits<L>::infinity();
  L sum_exp = 0;
};

/// Processes blocks that stay in the L1 cache: finds the block's largest element, then adds its sum, rescaling the
/// previous sum if the largest grew. Milakov, Gimelshein, "Online normalizer calculation for softmax", 2018.
template <class T>
RowStats<Lane<T>> stats_of_row(const T* x, i64 count) {
  constexpr i64 kBlock = 4096;
  const LaneTag<T> d;
  RowStats<Lane<T>> stats;
  for (i64 begin = 0; begin < count; begin += kBlock) {
    const i64 end = std::min(count, begin + kBlock);
    const auto largest = std::max(stats.largest, largest_of(d, x + begin, end - begin));
    // Subtracts nothing while all elements are -infinity: exp(-inf + inf) would be NaN instead of 0.
    const auto shift = std::isinf(largest) && largest < 0 ? Lane<T>{0} : largest;
    const auto shifts = hn::Set(d, shift);
    Sum<LaneTag<T>> sum;
    sweep_slots(d, begin, end, [&](i64 i, auto lanes, int slot) {
      const auto e = exp_of(d, hn::Sub(load(d, x + i, lanes), shifts));
      sum.add(used_or(d, e, hn::Zero(d), lanes), slot);
    });
    stats.sum_exp = stats.sum_exp * std::exp(stats.largest - shift) + sum.total();
    stats.largest = largest;
  }
  return stats;
}

void cross_entropy_stats(const Tensor& logits, const Tensor& targets, i64 first_row, i64 valid_columns, Tensor& largest,
                         Tensor& sum_exp, Tensor& target_logit) {
  on_float(logits.dtype(), [&]<class T>() {
    const i64 n = logits.dim(1);
    const T* x = logits.data<T>();
    const i32* ids = targets.data<i32>();
    auto *row_maxima = largest.data<Lane<T>>(), *sums = sum_exp.data<Lane<T>>(),
         *target_logits = target_logit.data<Lane<T>>();
    parallel_for(cpu(logits), logits.dim(0), rows_per_chunk(n), [=](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        const RowStats<Lane<T>> stats = stats_of_row(x + r * n, valid_columns);
        const i64 target = ids[r] - first_row;
        row_maxima[r] = stats.largest;
        sums[r] = stats.sum_exp;
        target_logits[r] =
            ids[r] >= 0 && target >= 0 && target < n ? static_cast<Lane<T>>(x[r * n + target]) : Lane<T>{0};
      }
    });
  });
}

/// Computes x = exp(x - lse) scale, minus `scale` at `target` if it is one of the `count` columns; with a soft cap also
/// times its slope, 1 - (x / cap)^2.
template <bool kCapped, class T>
void gradient_of_row(T* x, i64 count, i64 target, Lane<T> lse, Lane<T> scale, Lane<T> inverse_cap) {
  const LaneTag<T> d;
  const auto gradient = [=](auto v, Lane<T> is_target) {
    const auto p = exp_of(d, hn::Sub(v, hn::Set(d, lse)));
    const auto slope_of_logit = hn::Mul(hn::Sub(p, hn::Set(d, is_target)), hn::Set(d, scale));
    if constexpr (!kCapped) return slope_of_logit;
    const auto t = hn::Mul(v, hn::Set(d, inverse_cap));
    // Rounding may make t slightly larger than 1.
    return hn::Mul(slope_of_logit, hn::Max(hn::NegMulAdd(t, t, hn::Set(d, Lane<T>{1})), hn::Zero(d)));
  };
  const bool has_target = target >= 0 && target < count;
  const auto at_target = has_target ? gradient(load(d, x + target, FirstLanes{1}), 1) : hn::Zero(d);
  sweep(d, 0, count, [=](i64 i, auto lanes) { store(gradient(load(d, x + i, lanes), 0), d, x + i, lanes); });
  if (has_target) store(at_target, d, x + target, FirstLanes{1});
}

void cross_entropy_gradient(Tensor& logits, const Tensor& targets, i64 first_row, i64 valid_columns, const Tensor& lse,
                            double scale, double cap) {
  on_float(logits.dtype(), [&]<class T>() {
    const i64 n = logits.dim(1);
    T* x = logits.data<T>();
    const i32* ids = targets.data<i32>();
    const auto* lses = lse.data<Lane<T>>();
    const auto inverse_cap = static_cast<Lane<T>>(cap > 0 ? 1 / cap : 0);
    const auto differentiate = cap > 0 ? gradient_of_row<true, T> : gradient_of_row<false, T>;
    parallel_for(cpu(logits), logits.dim(0), rows_per_chunk(n), [=](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        const i64 count = ids[r] < 0 ? 0 : std::clamp<i64>(valid_columns, 0, n);
        differentiate(x + r * n, count, ids[r] - first_row, lses[r], static_cast<Lane<T>>(scale), inverse_cap);
        std::fill(x + r * n + count, x + (r + 1) * n, T{});
      }
    });
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(cross_entropy_stats);
HWY_EXPORT(cross_entropy_gradient);

template <>
void Kernels<DeviceType::Cpu>::cross_entropy_stats(const Tensor& logits, const Tensor& targets, i64 first_row,
                                                   i64 valid_columns, Tensor& largest, Tensor& sum_exp,
                                                   Tensor& target_logit) {
  HWY_DYNAMIC_DISPATCH(cross_entropy_stats)(logits, targets, first_row, valid_columns, largest, sum_exp, target_logit);
}

template <>
void Kernels<DeviceType::Cpu>::cross_entropy_gradient(Tensor& logits, const Tensor& targets, i64 first_row,
                                                      i64 valid_columns, const Tensor& lse, double scale, double cap,
                                                      const Tensor& factor) {
  if (factor.defined()) scale *= *factor.data<double>();
  HWY_DYNAMIC_DISPATCH(cross_entropy_gradient)(logits, targets, first_row, valid_columns, lse, scale, cap);
}

}  // namespace mcpp
#endif  // HWY_ONCE
