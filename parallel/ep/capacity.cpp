#include "parallel/ep/capacity.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

#include "tensor/integers.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

/// A choice of some token, and what decides between it and others.
struct Candidate {
  float weight;
  i32 order, choice;
  std::size_t place;  ///< in the choices of all ranks

  bool operator<(const Candidate& other) const {
    return std::tuple(-weight, order, choice) < std::tuple(-other.weight, other.order, other.choice);
  }
};

/// Of all ranks of the microbatch, one after another.
Tensor of_all(const Tensor& own, Communicator* sample) {
  if (!sample || sample->size() == 1) return own;
  Tensor all = Tensor::like(own, {sample->size() * own.numel()});
  sample->all_gather(own, all).wait();
  return all;
}

/// In fp32, which is enough to compare them; all alike where they do not count.
Tensor comparable_weights(const CapacityRule& rule) {
  Tensor weights = Tensor::zeros({rule.experts.numel()}, DType::F32, rule.experts.device());
  if (rule.weights.defined()) ops::copy(rule.weights, weights);
  return weights;
}

/// What is not a number, which no order has a place for, comes first, as in the choice of experts.
float ordered(float weight) {
  return std::isnan(weight) ? std::numeric_limits<float>::infinity() : weight;
}

using ByExpert = std::vector<std::vector<Candidate>>;

ByExpert candidates_of(const CapacityRule& rule, const Tensor& experts, Communicator* sample) {
  const Tensor own_order = integers(rule.order, rule.experts.device());
  const HostValues<i32> chosen(experts), order(of_all(own_order, sample));
  const HostValues<float> weights(of_all(comparable_weights(rule), sample));
  const auto topk = static_cast<std::size_t>(rule.experts.dim(1));
  ByExpert candidates(static_cast<std::size_t>(rule.num_experts));
  for (std::size_t i = 0; i < chosen.size(); ++i)
    candidates.at(static_cast<std::size_t>(chosen[i]))
        .push_back({ordered(weights[i]), order[i / topk], static_cast<i32>(i % topk), i});
  return candidates;
}

}  // namespace

i64 expert_capacity(i64 choices, i64 num_experts, double factor) {
  const double share = std::ceil(static_cast<double>(choices) / static_cast<double>(num_experts) * factor);
  return share < static_cast<double>(choices) ? static_cast<i64>(share) : choices;
}

i64 most_microbatches(i64 exchange, i64 sample) {
  if (sample % exchange == 0) return 1;
  return exchange % sample == 0 ? exchange / sample : exchange / sample + 2;  // a part at either end
}

Tensor drop_overflow(const CapacityRule& rule, Communicator* sample) {
  const Tensor all = of_all(rule.experts, sample);
  const auto own = static_cast<std::size_t>(rule.experts.numel());
  const std::size_t first = all.numel() > rule.experts.numel() ? own * static_cast<std::size_t>(sample->rank()) : 0;
  std::vector<i32> kept = read_values<i32>(rule.experts);
  for (std::vector<Candidate>& candidates : candidates_of(rule, all, sample)) {
    const auto most = static_cast<std::size_t>(rule.capacity);
    if (candidates.size() <= most) continue;
    std::sort(candidates.begin(), candidates.end());
    for (std::size_t i = most; i < candidates.size(); ++i) {
      const std::size_t place = candidates[i].place;
      if (place >= first && place < first + own) kept[place - first] = -1;
    }
  }
  return integers(kept, rule.experts.shape(), rule.experts.device());
}

}  // namespace mcpp
