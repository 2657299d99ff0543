// Routing tables of experts, computed on the device.
#pragma once
#include "tensor/tensor.h"

namespace mcpp {

/// Range [first, first + count) of experts. Ops ignore all other values, including negative ones.
struct ExpertRange {
  i64 first = 0, count = 0;
};

namespace ops {

/// Counts the occurrences of each expert of the range in `experts`, int32 of any shape. counts: int32 [range.count].
void count_choices(const Tensor& experts, const ExpertRange& range, Tensor& counts);

/// Sorts the choices of the range by expert, stably. experts: int32 [T, k]. tokens: int32 [N], where N is the sum of
/// counts of count_choices(): the token of each choice. slots: int32 [T, k], the index of each choice in the sorted
/// order; -1 = not in the range.
void sort_choices(const Tensor& experts, const ExpertRange& range, Tensor& tokens, Tensor& slots);

/// Groups of experts, such as the ranks that have them.
struct ExpertGroups {
  Tensor groups;  ///< int32 [num_experts, g]: the groups of each expert; negative = none
  /// int32 [B]: the groups of block i of T / B consecutive tokens are increased by offsets[i]; if that is negative,
  /// these tokens have no groups.
  Tensor offsets;
};
/// Finds the distinct groups of the experts of each token, in the order of their first occurrence. experts: int32 [T,
/// k]; values outside of [0, num_experts) have no groups. distinct: int32 [T, m], followed by -1 in each row; further
/// groups of a token with more than m are omitted.
void distinct_groups(const Tensor& experts, const ExpertGroups& groups, Tensor& distinct);

/// Maximum number of choices accepted by each of the experts [0, num_experts).
struct Capacity {
  i64 num_experts = 0, max_choices = 0;
};
/// Drops choices such that no expert keeps more than capacity.max_choices. Choices with the largest weights are kept,
/// where NaN counts as largest. Ties go to the token with the smaller `order`, then to the earlier choice of the same
/// token. experts: int32 [T, k]; values outside of the range are unchanged. weights: fp32 [T, k]. order: int32 [T],
/// unique values from 0 to below 2^32 / k. kept: int32 [t, k], for tokens [first, first + t): the expert, or -1 if
/// dropped.
void drop_overflow(const Tensor& experts, const Tensor& weights, const Tensor& order, const Capacity& capacity,
                   i64 first, Tensor& kept);

/// Builds a permutation from runs of rows. `runs`, int32 [R, 3], holds the source row, destination row and number of
/// rows of each run; together the runs cover rows [0, M) exactly once. `order`, int32 [M], receives the source row of
/// each destination row, and `inverse`, int32 [M], the inverse permutation.
void permutation_from_runs(const Tensor& runs, Tensor& order, Tensor& inverse);

}  // namespace ops

/// Backend implementations, as in Kernels.
template <DeviceType D>
struct ChoiceKernels {
  static decltype(ops::count_choices) count_choices;
  static decltype(ops::sort_choices) sort_choices;
  static decltype(ops::distinct_groups) distinct_groups;
  static decltype(ops::drop_overflow) drop_overflow;
  static decltype(ops::permutation_from_runs) permutation_from_runs;
};

}  // namespace mcpp
