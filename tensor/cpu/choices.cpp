#include "tensor/ops/choices.h"

#include <algorithm>
#include <vector>

namespace mcpp {
namespace {

/// The expert's number in the range, or -1.
i64 number_in(const ExpertRange& range, i32 expert) {
  const i64 number = expert - range.first;
  return expert >= 0 && number >= 0 && number < range.count ? number : -1;
}

void count(const Tensor& experts, const ExpertRange& range, i32* counts) {
  std::fill_n(counts, range.count, 0);
  for (i64 i = 0; i < experts.numel(); ++i) {
    if (const i64 number = number_in(range, experts.data<i32>()[i]); number >= 0) ++counts[number];
  }
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
  MCPP_CHECK(next.back() == tokens.numel(), "sort_choices: ", next.back(), " choices, room for ", tokens.numel());
  const i64 topk = experts.dim(1);
  for (i64 i = 0; i < experts.numel(); ++i) {
    const i64 number = number_in(range, experts.data<i32>()[i]);
    const i32 row = number < 0 ? -1 : next[static_cast<std::size_t>(number)]++;
    slots.data<i32>()[i] = row;
    if (row >= 0) tokens.data<i32>()[row] = static_cast<i32>(i / topk);
  }
}

template <>
void ChoiceKernels<DeviceType::Cpu>::order_of_runs(const Tensor& runs, Tensor& order, Tensor& inverse) {
  for (i64 r = 0; r < runs.dim(0); ++r) {
    const i32* run = runs.data<i32>() + 3 * r;
    for (i32 i = 0; i < run[2]; ++i) {
      order.data<i32>()[run[1] + i] = run[0] + i;
      inverse.data<i32>()[run[0] + i] = run[1] + i;
    }
  }
}

}  // namespace mcpp
