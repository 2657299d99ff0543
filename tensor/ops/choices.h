// Which rows of tokens go to which experts: tables that kernels read, worked out where they are.
#pragma once
#include "tensor/tensor.h"

namespace mcpp {

/// Experts [first, first + count); all others, and negative ones, are none.
struct ExpertRange {
  i64 first = 0, count = 0;
};

namespace ops {

/// How often each expert of the range occurs in `experts`, int32 of any shape. counts: int32 [range.count].
void count_choices(const Tensor& experts, const ExpertRange& range, Tensor& counts);

/// The choices of the range in the order of their experts, and of choices of one expert. experts: int32 [T, k]. tokens:
/// int32 [N], as many as count_choices() counts: the token of each. slots: int32 [T, k], the place of each choice in
/// that order; -1 = none.
void sort_choices(const Tensor& experts, const ExpertRange& range, Tensor& tokens, Tensor& slots);

/// What each of the experts [0, num_experts) takes of its choices.
struct Capacity {
  i64 num_experts = 0, most = 0;
};
/// The choices that are left when no expert takes more than capacity.most of its own: those with the largest weights,
/// what is not a number before all others; between equals those of tokens whose `order` is smaller, and of a token's
/// the first. experts: int32 [T, k], others than those of the range stay what they are; weights: fp32 [T, k]; order:
/// int32 [T], no number twice, from 0 to below 2^32 / k. kept: int32 [t, k], for tokens [first, first + t): the expert,
/// or -1 = left out.
void drop_overflow(const Tensor& experts, const Tensor& weights, const Tensor& order, const Capacity& capacity,
                   i64 first, Tensor& kept);

/// A permutation made of runs. runs: int32 [R, 3]: where a run of rows begins, where it goes, and how many rows it has;
/// together all rows [0, M), once. order: int32 [M], the row that comes to lie at each place; inverse: [M], the way
/// back.
void order_of_runs(const Tensor& runs, Tensor& order, Tensor& inverse);

}  // namespace ops

/// As Kernels.
template <DeviceType D>
struct ChoiceKernels {
  static decltype(ops::count_choices) count_choices;
  static decltype(ops::sort_choices) sort_choices;
  static decltype(ops::drop_overflow) drop_overflow;
  static decltype(ops::order_of_runs) order_of_runs;
};

}  // namespace mcpp
