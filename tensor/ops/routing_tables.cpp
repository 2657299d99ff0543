#include "tensor/ops/routing_tables.h"

#include <limits>

#include "tensor/on_device.h"

namespace mcpp::ops {
namespace {

void check_integers(const char* op, const char* name, const Tensor& t) {
  MCPP_CHECK(t.defined() && t.dtype() == DType::I32, op, ": ", name, " must be int32");
}

void check_choices(const char* op, const Tensor& experts, const ExpertRange& range) {
  check_integers(op, "experts", experts);
  MCPP_CHECK(range.first >= 0 && range.count > 0 && experts.numel() < std::numeric_limits<i32>::max(), op,
             ": invalid range of ", range.count, " experts from ", range.first,
             ", or too many choices: ", experts.numel());
}

}  // namespace

void count_choices(const Tensor& experts, const ExpertRange& range, Tensor& counts) {
  check_choices("count_choices", experts, range);
  check_integers("count_choices", "counts", counts);
  MCPP_CHECK(counts.numel() == range.count, "count_choices: counts ", counts.shape(), " does not match ", range.count,
             " experts");
  on_device(experts, [&]<DeviceType D>() { ChoiceKernels<D>::count_choices(experts, range, counts); });
}

void sort_choices(const Tensor& experts, const ExpertRange& range, Tensor& tokens, Tensor& slots) {
  check_choices("sort_choices", experts, range);
  check_integers("sort_choices", "tokens", tokens);
  check_integers("sort_choices", "slots", slots);
  MCPP_CHECK(experts.rank() == 2 && slots.numel() == experts.numel() && tokens.numel() <= experts.numel(),
             "sort_choices: shapes of experts ", experts.shape(), ", slots ", slots.shape(), " and tokens ",
             tokens.shape(), " do not match");
  if (experts.numel() == 0) return;
  on_device(experts, [&]<DeviceType D>() { ChoiceKernels<D>::sort_choices(experts, range, tokens, slots); });
}

void distinct_groups(const Tensor& experts, const ExpertGroups& groups, Tensor& distinct) {
  constexpr const char* kOp = "distinct_groups";
  check_integers(kOp, "experts", experts);
  check_integers(kOp, "groups", groups.groups);
  check_integers(kOp, "offsets", groups.offsets);
  check_integers(kOp, "distinct", distinct);
  MCPP_CHECK(experts.rank() == 2 && groups.groups.rank() == 2 && distinct.rank() == 2 &&
                 distinct.dim(0) == experts.dim(0) && groups.offsets.numel() > 0 &&
                 experts.dim(0) % groups.offsets.numel() == 0,
             kOp, ": shapes of experts ", experts.shape(), ", groups ", groups.groups.shape(), ", offsets ",
             groups.offsets.shape(), " and distinct ", distinct.shape(), " do not match");
  if (distinct.numel() == 0) return;
  on_device(experts, [&]<DeviceType D>() { ChoiceKernels<D>::distinct_groups(experts, groups, distinct); });
}

void drop_overflow(const Tensor& experts, const Tensor& weights, const Tensor& order, const Capacity& capacity,
                   i64 first, Tensor& kept) {
  constexpr const char* kOp = "drop_overflow";
  check_choices(kOp, experts, {0, capacity.num_experts});
  check_integers(kOp, "order", order);
  check_integers(kOp, "kept", kept);
  MCPP_CHECK(weights.dtype() == DType::F32 && capacity.max_choices > 0, kOp, ": weights must be fp32, not ",
             name_of(weights.dtype()), ", and the capacity positive, not ", capacity.max_choices);
  MCPP_CHECK(experts.rank() == 2 && kept.rank() == 2 && kept.dim(1) == experts.dim(1) && first >= 0 &&
                 first + kept.dim(0) <= experts.dim(0) && weights.numel() == experts.numel() &&
                 order.numel() == experts.dim(0),
             kOp, ": experts ", experts.shape(), ", weights ", weights.shape(), ", order ", order.shape(), ", kept ",
             kept.shape(), " from ", first);
  if (kept.numel() == 0) return;
  on_device(experts,
            [&]<DeviceType D>() { ChoiceKernels<D>::drop_overflow(experts, weights, order, capacity, first, kept); });
}

void permutation_from_runs(const Tensor& runs, Tensor& order, Tensor& inverse) {
  check_integers("order_of_runs", "runs", runs);
  check_integers("order_of_runs", "order", order);
  check_integers("order_of_runs", "inverse", inverse);
  MCPP_CHECK(runs.rank() == 2 && runs.dim(1) == 3 && order.numel() == inverse.numel(),
             "permutation_from_runs: shapes of runs ", runs.shape(), ", order ", order.shape(), " and inverse ",
             inverse.shape(), " do not match");
  if (order.numel() == 0) return;
  on_device(runs, [&]<DeviceType D>() { ChoiceKernels<D>::permutation_from_runs(runs, order, inverse); });
}

}  // namespace mcpp::ops
