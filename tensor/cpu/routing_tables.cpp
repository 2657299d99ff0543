#include "tensor/ops/routing_tables.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <tuple>
#include <vector>

namespace mcpp {
namespace {

/// Returns the expert's index in the range, or -1.
i64 index_in_range(const ExpertRange& range, i32 expert) {
  const i64 number = expert - range.first;
  return expert >= 0 && number >= 0 && number < range.count ? number : -1;
}

void count(const Tensor& experts, const ExpertRange& range, i32* counts) {
  std::fill_n(counts, range.count, 0);
  for (i64 i = 0; i < experts.numel(); ++i) {
    if (const i64 number = index_in_range(range, experts.data<i32>()[i]); number >= 0) ++counts[number];
  }
}

/// Choice of a token, with the keys that order it among the choices of its expert.
struct Candidate {
  float weight;
  i32 order;
  i64 index;  ///< index among all choices, by token

  bool operator<(const Candidate& other) const {
    return std::tuple(-weight, order, index) < std::tuple(-other.weight, other.order, other.index);
  }
};

/// Maps NaN, which cannot be ordered, to infinity, so that it comes first as in the choice of experts.
float ordered(float weight) {
  return std::isnan(weight) ? std::numeric_limits<float>::infinity() : weight;
}

}  // namespace

template <>
void ChoiceKernels<DeviceType::Cpu>::count_choices(const Tensor& experts, const ExpertRange& range, Tensor& counts) {
  count(experts, range, counts.data<i32>());
}

template <>
void ChoiceKernels<DeviceType::Cpu>::sort_choices(const Tensor& experts, const ExpertRange& range, Tensor& tokens,
                                                  Tensor& slots) {
  std::vector<i32> next(static_cast<std::size_t>(range.count) + 1, 0);
  count(experts, range, next.data() + 1);
  for (std::size_t e = 1; e < next.size(); ++e) next[e] += next[e - 1];
  MCPP_CHECK(next.back() == tokens.numel(), "sort_choices: ", "tokens has ", tokens.numel(), " elements for ",
             next.back(), " choices");
  const i64 topk = experts.dim(1);
  for (i64 i = 0; i < experts.numel(); ++i) {
    const i64 number = index_in_range(range, experts.data<i32>()[i]);
    const i32 row = number < 0 ? -1 : next[static_cast<std::size_t>(number)]++;
    slots.data<i32>()[i] = row;
    if (row >= 0) tokens.data<i32>()[row] = static_cast<i32>(i / topk);
  }
}

template <>
void ChoiceKernels<DeviceType::Cpu>::place_choices(const Tensor& experts, const ExpertRange& range, i64 rows,
                                                   Tensor& tokens, Tensor& slots) {
  std::vector<i64> counts(static_cast<std::size_t>(range.count), 0);
  std::fill_n(tokens.data<i32>(), tokens.numel(), -1);
  const i64 topk = experts.dim(1);
  for (i64 i = 0; i < experts.numel(); ++i) {
    const i64 number = index_in_range(range, experts.data<i32>()[i]);
    slots.data<i32>()[i] = -1;
    if (number < 0) continue;
    const i64 index = counts[static_cast<std::size_t>(number)]++;
    MCPP_CHECK(index < rows, "place_choices: an expert has more than ", rows, " choices");
    slots.data<i32>()[i] = static_cast<i32>(number * rows + index);
    tokens.data<i32>()[number * rows + index] = static_cast<i32>(i / topk);
  }
}

template <>
void ChoiceKernels<DeviceType::Cpu>::order_padded_rows(const Tensor& counts, const ExpertRange& range,
                                                       const ops::PaddedRows& rows, Tensor& order, Tensor& inverse) {
  std::fill_n(order.data<i32>(), order.numel(), -1);
  std::fill_n(inverse.data<i32>(), inverse.numel(), -1);
  for (i64 e = 0; e < range.count; ++e) {
    i64 row = 0;
    for (i64 rank = 0; rank < counts.dim(0); ++rank) {
      const i64 own = counts.data<i32>()[rank * counts.dim(1) + range.first + e],
                first = (rank * range.count + e) * rows.per_rank;
      MCPP_CHECK(own <= rows.per_rank && row + own <= rows.per_expert, "order_padded_rows: a rank sends ", own,
                 " rows after ", row, " of others to an expert with ", rows.per_expert, ", ", rows.per_rank,
                 " from each rank");
      for (i64 i = 0; i < own; ++i, ++row) {
        order.data<i32>()[e * rows.per_expert + row] = static_cast<i32>(first + i);
        inverse.data<i32>()[first + i] = static_cast<i32>(e * rows.per_expert + row);
      }
    }
  }
}

template <>
void ChoiceKernels<DeviceType::Cpu>::tally_choices(const Tensor& experts, Tensor& counts, Tensor& dropped) {
  const i64 topk = experts.dim(1), batch = counts.defined() ? counts.dim(0) : 1,
            num_experts = counts.defined() ? counts.dim(1) : 0;
  for (i64 i = 0; i < experts.numel(); ++i) {
    const i32 expert = experts.data<i32>()[i];
    if (expert >= 0 && expert < num_experts) ++counts.data<double>()[i / topk % batch * num_experts + expert];
    if (expert < 0 && dropped.defined()) ++*dropped.data<double>();
  }
}

template <>
void ChoiceKernels<DeviceType::Cpu>::divide_by_mean(Tensor& counts) {
  const std::span<double> values(counts.data<double>(), static_cast<std::size_t>(counts.numel()));
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  for (double& value : values) value *= sum > 0 ? static_cast<double>(values.size()) / sum : 0;
}

template <>
void ChoiceKernels<DeviceType::Cpu>::add_dot(const Tensor& x, const Tensor& y, Tensor& sum) {
  const double* from = x.data<double>();
  *sum.data<double>() += std::inner_product(from, from + x.numel(), y.data<double>(), 0.0);
}

template <>
void ChoiceKernels<DeviceType::Cpu>::fill_progression(Tensor& table, const ops::Progression& values) {
  for (i64 i = 0; i < table.numel(); ++i) {
    const i64 row = i / table.dim(1), column = i % table.dim(1);
    table.data<i32>()[i] = static_cast<i32>(values.first + row * values.row_step + column * values.column_step);
  }
}

template <>
void ChoiceKernels<DeviceType::Cpu>::distinct_groups(const Tensor& experts, const ops::ExpertGroups& groups,
                                                     Tensor& distinct) {
  const i64 topk = experts.dim(1), width = groups.groups.dim(1), all = groups.groups.dim(0), slots = distinct.dim(1),
            block = experts.dim(0) / groups.offsets.numel();
  std::fill_n(distinct.data<i32>(), distinct.numel(), -1);
  for (i64 t = 0; t < experts.dim(0); ++t) {
    const i32 offset = groups.offsets.data<i32>()[t / block];
    if (offset < 0) continue;
    i32 *begin = distinct.data<i32>() + t * slots, *end = begin;
    for (i64 j = 0; j < topk; ++j) {
      const i64 expert = experts.data<i32>()[t * topk + j];
      if (expert < 0 || expert >= all) continue;
      for (i64 i = 0; i < width; ++i) {
        const i32 group = groups.groups.data<i32>()[expert * width + i];
        if (group < 0 || end == begin + slots || std::find(begin, end, group + offset) != end) continue;
        *end++ = group + offset;
      }
    }
  }
}

template <>
void ChoiceKernels<DeviceType::Cpu>::drop_overflow(const Tensor& experts, const Tensor& weights, const Tensor& order,
                                                   const ops::Capacity& capacity, i64 first, Tensor& kept) {
  const i64 topk = experts.dim(1), begin = first * topk;
  std::copy_n(experts.data<i32>() + begin, kept.numel(), kept.data<i32>());
  std::vector<std::vector<Candidate>> candidates(static_cast<std::size_t>(capacity.num_experts));
  for (i64 i = 0; i < experts.numel(); ++i) {
    if (const i64 expert = index_in_range({0, capacity.num_experts}, experts.data<i32>()[i]); expert >= 0)
      candidates[static_cast<std::size_t>(expert)].push_back(
          {ordered(weights.data<float>()[i]), order.data<i32>()[i / topk], i});
  }
  for (std::vector<Candidate>& own : candidates) {
    if (static_cast<i64>(own.size()) <= capacity.max_choices) continue;
    const auto overflow = own.begin() + capacity.max_choices;
    std::nth_element(own.begin(), overflow, own.end());
    std::for_each(overflow, own.end(), [&](const Candidate& x) {
      if (x.index >= begin && x.index < begin + kept.numel()) kept.data<i32>()[x.index - begin] = -1;
    });
  }
}

template <>
void ChoiceKernels<DeviceType::Cpu>::permutation_from_runs(const Tensor& runs, Tensor& order, Tensor& inverse) {
  for (i64 r = 0; r < runs.dim(0); ++r) {
    const i32* run = runs.data<i32>() + 3 * r;
    for (i32 i = 0; i < run[2]; ++i) {
      order.data<i32>()[run[1] + i] = run[0] + i;
      inverse.data<i32>()[run[0] + i] = run[1] + i;
    }
  }
}

}  // namespace mcpp
