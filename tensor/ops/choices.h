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
  static decltype(ops::order_of_runs) order_of_runs;
};

}  // namespace mcpp
