// Routers of mixtures of experts: choice of experts by their logits, and their weights.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/routing.cpp"
#include <cmath>
#include <vector>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/router_scores-inl.h"
#include "tensor/dtype.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Keeps the largest values added, in descending order; ties by order of insertion.
template <class L>
class Largest {
 public:
  explicit Largest(i64 max_values) : max_values_(static_cast<std::size_t>(max_values)) {}

  void clear() { kept_.clear(); }
  void add(L value, i64 number) {
    if (kept_.size() == max_values_ && !is_above(value, kept_.back().value)) return;
    if (kept_.size() == max_values_) kept_.pop_back();
    auto at = kept_.end();
    while (at != kept_.begin() && is_above(value, (at - 1)->value)) --at;
    kept_.insert(at, {value, number});
  }
  L sum() const {
    L total = 0;
    for (const RankedValue& x : kept_) total += x.value;
    return total;
  }
  i64 number(i64 i) const { return kept_[static_cast<std::size_t>(i)].number; }

 private:
  struct RankedValue {
    L value;
    i64 number;
  };
  static bool is_above(L a, L b) { return a > b || (std::isnan(a) && !std::isnan(b)); }

  std::size_t max_values_;
  std::vector<RankedValue> kept_;
};

/// Chooses the experts of rows, one row at a time.
template <class L>
class Chooser {
 public:
  Chooser(const RoutingRule& rule, const float* bias, i64 experts)
      : rule_(rule),
        bias_(bias),
        experts_(experts),
        scores_(static_cast<std::size_t>(experts)),
        chosen_(rule.topk),
        groups_(rule.group_topk),
        in_group_(rule.scores_per_group()) {}

  void choose(const L* logits, i32* to) {
    const L* scores = scores_of(logits);
    chosen_.clear();
    if (rule_.groups == 0) {
      add(scores, 0, experts_, chosen_);
    } else {
      for (const i64 first : best_groups(scores)) add(scores, first, experts_ / rule_.groups, chosen_);
    }
    for (i64 j = 0; j < rule_.topk; ++j) to[j] = static_cast<i32>(chosen_.number(j));
  }

 private:
  /// Returns the scores by which experts are chosen. Without a bias or sums of groups these are the logits, which have
  /// the same order as scores and avoid their rounding.
  const L* scores_of(const L* logits) {
    if (!bias_ && rule_.groups == 0) return logits;
    L* scores = scores_.data();
    if (rule_.score != RouterScore::Softmax) {
      scores_of_row(rule_.score, logits, experts_, scores);
    } else if (rule_.pre_softmax) {
      softmax_of_row(logits, experts_, scores);
    } else {
      std::copy_n(logits, experts_, scores);
    }
    for (i64 e = 0; bias_ && e < experts_; ++e) scores[e] += static_cast<L>(bias_[e]);
    return scores;
  }

  static void add(const L* scores, i64 first, i64 count, Largest<L>& to) {
    for (i64 e = first; e < first + count; ++e) to.add(scores[e], e);
  }

  /// Returns the first experts of the best groups, in ascending order.
  std::vector<i64> best_groups(const L* scores) {
    const i64 size = experts_ / rule_.groups;
    groups_.clear();
    for (i64 first = 0; first < experts_; first += size) {
      in_group_.clear();
      add(scores, first, size, in_group_);
      groups_.add(in_group_.sum(), first);
    }
    std::vector<i64> firsts;
    for (i64 i = 0; i < rule_.group_topk; ++i) firsts.push_back(groups_.number(i));
    std::sort(firsts.begin(), firsts.end());
    return firsts;
  }

  const RoutingRule& rule_;
  const float* bias_;
  i64 experts_;
  std::vector<L> scores_;
  Largest<L> chosen_, groups_, in_group_;
};

void choose_experts(const Tensor& logits, const Tensor* bias, const RoutingRule& rule, Tensor& experts) {
  on_accumulate_dtype(logits.dtype(), [&]<class L>() {
    const i64 n = logits.dim(1);
    const L* x = logits.data<L>();
    i32* to = experts.data<i32>();
    parallel_for(cpu(logits), logits.dim(0), rows_per_chunk(n), [&](i64 begin, i64 end) {
      Chooser<L> chooser(rule, bias ? bias->data<float>() : nullptr, n);
      for (i64 r = begin; r < end; ++r) chooser.choose(x + r * n, to + r * rule.topk);
    });
  });
}

/// Scores from which the weights of a row's experts are computed.
template <class L>
struct ChosenScores {
  std::vector<L> all;     ///< [E] with pre_softmax: softmax over all experts
  std::vector<L> chosen;  ///< [k] softmax, or scores of another function
  L sum = 1;              ///< divisor of the scores

  ChosenScores(const RoutingRule& rule, i64 experts)
      : all(static_cast<std::size_t>(experts)), chosen(static_cast<std::size_t>(rule.topk)) {}

  void compute(const RoutingRule& rule, const L* logits, const i32* experts) {
    const bool covers_all_experts = rule.score == RouterScore::Softmax && rule.pre_softmax;
    if (covers_all_experts) softmax_of_row(logits, static_cast<i64>(all.size()), all.data());
    const L* from = covers_all_experts ? all.data() : logits;
    for (i64 j = 0; j < rule.topk; ++j) chosen[static_cast<std::size_t>(j)] = from[experts[j]];
    if (rule.score != RouterScore::Softmax) {
      const L total = scores_of_row(rule.score, chosen.data(), rule.topk, chosen.data());
      if (rule.topk > 1) sum = total + kTiny<L>;
    } else if (!rule.pre_softmax) {
      softmax_of_row(chosen.data(), rule.topk, chosen.data());
    }
  }
};

void routing_weights(const Tensor& logits, const Tensor& experts, const RoutingRule& rule, Tensor& weights) {
  on_accumulate_dtype(logits.dtype(), [&]<class L>() {
    const i64 n = logits.dim(1), k = rule.topk;
    const L* x = logits.data<L>();
    const i32* ids = experts.data<i32>();
    L* to = weights.data<L>();
    parallel_for(cpu(logits), logits.dim(0), rows_per_chunk(n), [=, &rule](i64 begin, i64 end) {
      ChosenScores<L> scores(rule, n);
      for (i64 r = begin; r < end; ++r) {
        scores.compute(rule, x + r * n, ids + r * k);
        const L factor = static_cast<L>(rule.scale) / scores.sum;
        for (i64 j = 0; j < k; ++j) to[r * k + j] = scores.chosen[static_cast<std::size_t>(j)] * factor;
      }
    });
  });
}

/// Computes the gradient by the logits of a row from dw, the gradient by the weights.
template <class L>
void weights_backward_of_row(const RoutingRule& rule, const ChosenScores<L>& scores, const L* dw, const i32* experts,
                             L* dx, i64 n) {
  const LaneTag<L> d;
  const L scale = static_cast<L>(rule.scale);
  const bool is_softmax = rule.score == RouterScore::Softmax;
  L mean = 0;  // mean of dw, weighted by scores that sum to 1
  for (i64 j = 0; j < rule.topk; ++j) mean += scale * dw[j] * scores.chosen[static_cast<std::size_t>(j)] / scores.sum;
  if (!is_softmax && rule.topk == 1) mean = 0;
  if (rule.pre_softmax && is_softmax) {
    const auto factor = hn::Set(d, -mean);
    sweep(d, 0, n,
          [&](i64 i, auto lanes) { store(hn::Mul(load(d, scores.all.data() + i, lanes), factor), d, dx + i, lanes); });
  } else {
    std::fill_n(dx, n, L{0});
  }
  for (i64 j = 0; j < rule.topk; ++j) {
    const L y = scores.chosen[static_cast<std::size_t>(j)];
    dx[experts[j]] = (scale * dw[j] - mean) / scores.sum * y * relative_slope(rule.score, y);
  }
}

void routing_weights_backward(const Tensor& d_weights, const Tensor& logits, const Tensor& experts,
                              const RoutingRule& rule, Tensor& d_logits) {
  on_accumulate_dtype(logits.dtype(), [&]<class L>() {
    const i64 n = logits.dim(1), k = rule.topk;
    const L *x = logits.data<L>(), *dw = d_weights.data<L>();
    const i32* ids = experts.data<i32>();
    L* dx = d_logits.data<L>();
    parallel_for(cpu(logits), logits.dim(0), rows_per_chunk(n), [=, &rule](i64 begin, i64 end) {
      ChosenScores<L> scores(rule, n);
      for (i64 r = begin; r < end; ++r) {
        scores.compute(rule, x + r * n, ids + r * k);
        weights_backward_of_row(rule, scores, dw + r * k, ids + r * k, dx + r * n, n);
      }
    });
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(choose_experts);
HWY_EXPORT(routing_weights);
HWY_EXPORT(routing_weights_backward);

template <>
void Kernels<DeviceType::Cpu>::choose_experts(const Tensor& logits, const Tensor* bias, const RoutingRule& rule,
                                              Tensor& experts) {
  HWY_DYNAMIC_DISPATCH(choose_experts)(logits, bias, rule, experts);
}

template <>
void Kernels<DeviceType::Cpu>::routing_weights(const Tensor& logits, const Tensor& experts, const RoutingRule& rule,
                                               Tensor& weights) {
  HWY_DYNAMIC_DISPATCH(routing_weights)(logits, experts, rule, weights);
}

template <>
void Kernels<DeviceType::Cpu>::routing_weights_backward(const Tensor& d_weights, const Tensor& logits,
                                                        const Tensor& experts, const RoutingRule& rule,
                                                        Tensor& d_logits) {
  HWY_DYNAMIC_DISPATCH(routing_weights_backward)(d_weights, logits, experts, rule, d_logits);
}

}  // namespace mcpp
#endif  // HWY_ONCE
