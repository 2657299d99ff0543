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

/// Fixed numbers of rows of each expert, in a table that is padded with empty rows.
struct PaddedRows {
  i64 per_rank = 0;    ///< rows that each rank sends to an expert; no rank may have more choices of it
  i64 per_expert = 0;  ///< rows of an expert, from all ranks; 0 = not padded
};
/// Places the choices of the range in a table with `rows` rows per expert, in the order of sort_choices(). experts:
/// int32 [T, k]. tokens: int32 [range.count * rows]: the token of each choice; -1 = empty. slots: int32 [T, k], the row
/// of each choice; -1 = none. An expert must not have more than `rows` choices: the CPU reports further ones as an
/// internal error, a GPU omits them.
void place_choices(const Tensor& experts, const ExpertRange& range, i64 rows, Tensor& tokens, Tensor& slots);

/// Computes the order of the rows that ranks sent to the experts of the range, by expert, then by rank. counts: int32
/// [ranks, num_experts], the number of choices of each rank. `order`, int32 [range.count * rows.per_expert]: for each
/// row of an expert, the index among the received rows [ranks, range.count, rows.per_rank]; the rows of an expert are
/// followed by -1. `inverse`, int32 [ranks * range.count * rows.per_rank]: the row of each received row; -1 = padding.
/// Further rows than the tables hold are treated as in place_choices().
void order_padded_rows(const Tensor& counts, const ExpertRange& range, const PaddedRows& rows, Tensor& order,
                       Tensor& inverse);

/// Adds to `counts`, fp64 [b, num_experts], the number of tokens t with t % b = i that chose expert e, and to
/// `dropped`, fp64 [1], the number of negative choices. experts: int32 [T, k]. Either result may be undefined;
/// together, b is 1.
void tally_choices(const Tensor& experts, Tensor& counts, Tensor& dropped);
/// Divides fp64 counts by their mean; leaves zeros as they are.
void divide_by_mean(Tensor& counts);
/// Adds the sum of the products of the elements of x and y to sum [1]. All are fp64.
void add_dot(const Tensor& x, const Tensor& y, Tensor& sum);

/// Arithmetic progression along both axes of a table: element (i, j) is first + i row_step + j column_step.
struct Progression {
  i64 first = 0, row_step = 0, column_step = 0;
};
/// Fills an int32 table [n, m] with values that must fit into int32.
void fill_progression(Tensor& table, const Progression& values);

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
  static decltype(ops::place_choices) place_choices;
  static decltype(ops::order_padded_rows) order_padded_rows;
  static decltype(ops::tally_choices) tally_choices;
  static decltype(ops::divide_by_mean) divide_by_mean;
  static decltype(ops::add_dot) add_dot;
  static decltype(ops::fill_progression) fill_progression;
  static decltype(ops::distinct_groups) distinct_groups;
  static decltype(ops::drop_overflow) drop_overflow;
  static decltype(ops::permutation_from_runs) permutation_from_runs;
};

}  // namespace mcpp
