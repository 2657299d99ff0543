#include "tensor/ops/routing_tables.h"

#include <algorithm>
#include <cstdlib>
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

void check_numbers(const char* op, const char* name, const Tensor& t) {
  MCPP_CHECK(t.dtype() == DType::F64, op, ": ", name, " must be fp64, not ", name_of(t.dtype()));
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

void place_choices(const Tensor& experts, const ExpertRange& range, i64 rows, Tensor& tokens, Tensor& slots) {
  constexpr const char* kOp = "place_choices";
  check_choices(kOp, experts, range);
  check_integers(kOp, "tokens", tokens);
  check_integers(kOp, "slots", slots);
  MCPP_CHECK(experts.rank() == 2 && slots.numel() == experts.numel() && rows >= 0 &&
                 tokens.numel() == range.count * rows && tokens.numel() < std::numeric_limits<i32>::max(),
             kOp, ": shapes of experts ", experts.shape(), ", slots ", slots.shape(), " and tokens ", tokens.shape(),
             " do not match ", range.count, " experts with ", rows, " rows");
  on_device(experts, [&]<DeviceType D>() { ChoiceKernels<D>::place_choices(experts, range, rows, tokens, slots); });
}

void order_padded_rows(const Tensor& counts, const ExpertRange& range, const PaddedRows& rows, Tensor& order,
                       Tensor& inverse) {
  constexpr const char* kOp = "order_padded_rows";
  check_choices(kOp, counts, range);
  check_integers(kOp, "order", order);
  check_integers(kOp, "inverse", inverse);
  MCPP_CHECK(counts.rank() == 2 && range.first + range.count <= counts.dim(1) && rows.per_rank >= 0 &&
                 order.numel() == range.count * rows.per_expert &&
                 inverse.numel() == counts.dim(0) * range.count * rows.per_rank &&
                 std::max(order.numel(), inverse.numel()) < std::numeric_limits<i32>::max(),
             kOp, ": shapes of counts ", counts.shape(), ", order ", order.shape(), " and inverse ", inverse.shape(),
             " do not match ", range.count, " experts with ", rows.per_expert, " rows, ", rows.per_rank,
             " from each rank");
  on_device(order, [&]<DeviceType D>() { ChoiceKernels<D>::order_padded_rows(counts, range, rows, order, inverse); });
}

void tally_choices(const Tensor& experts, Tensor& counts, Tensor& dropped) {
  constexpr const char* kOp = "tally_choices";
  check_integers(kOp, "experts", experts);
  if (counts.defined()) check_numbers(kOp, "counts", counts);
  if (dropped.defined()) check_numbers(kOp, "dropped", dropped);
  MCPP_CHECK(experts.rank() == 2 && (!counts.defined() || (counts.rank() == 2 && counts.numel() > 0)) &&
                 (!dropped.defined() || (dropped.numel() == 1 && (!counts.defined() || counts.dim(0) == 1))),
             kOp, ": shapes of experts ", experts.shape(), ", counts ", counts.shape(), " and dropped ",
             dropped.shape());
  if (experts.numel() == 0) return;
  on_device(experts, [&]<DeviceType D>() { ChoiceKernels<D>::tally_choices(experts, counts, dropped); });
}

void divide_by_mean(Tensor& counts) {
  check_numbers("divide_by_mean", "counts", counts);
  if (counts.numel() == 0) return;
  on_device(counts, [&]<DeviceType D>() { ChoiceKernels<D>::divide_by_mean(counts); });
}

void add_dot(const Tensor& x, const Tensor& y, Tensor& sum) {
  for (const Tensor* t : {&x, &y, static_cast<const Tensor*>(&sum)}) check_numbers("add_dot", "operand", *t);
  MCPP_CHECK(x.numel() == y.numel() && sum.numel() == 1, "add_dot: ", x.shape(), " and ", y.shape(),
             " do not match, or the sum ", sum.shape(), " has more than one element");
  on_device(x, [&]<DeviceType D>() { ChoiceKernels<D>::add_dot(x, y, sum); });
}

void fill_progression(Tensor& table, const Progression& values) {
  check_integers("fill_progression", "table", table);
  MCPP_CHECK(table.rank() == 2, "fill_progression: the table must be a matrix, not ", table.shape());
  if (table.numel() == 0) return;
  const i64 down = (table.dim(0) - 1) * values.row_step, across = (table.dim(1) - 1) * values.column_step;
  for (const i64 corner : {values.first, values.first + down, values.first + across, values.first + down + across})
    MCPP_CHECK(std::abs(corner) <= std::numeric_limits<i32>::max(), "fill_progression: ", corner, " is not int32");
  on_device(table, [&]<DeviceType D>() { ChoiceKernels<D>::fill_progression(table, values); });
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
