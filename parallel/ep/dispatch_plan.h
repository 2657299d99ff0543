// Communication plan of token dispatch, computed on the host from the number of tokens that each rank has for each
// expert: message sizes and row orders. All orders are fixed, so results are bitwise reproducible in a layout.
#pragma once
#include <span>
#include <vector>

#include "comm/communicator.h"

namespace mcpp {

/// Plan of one rank for one microbatch of T tokens with k experts each. A choice is one of these T k pairs; dropped
/// choices have no expert. ops::sort_choices() orders the choices on the device.
struct DispatchPlan {
  i64 choices = 0;  ///< number of rows that this rank sends (not dropped), ordered by expert, then by token
  /// Ranges of these rows by part of the experts.
  std::vector<Part> sent;
  /// Ranges of the M received rows by sending rank, each ordered by expert, then by token.
  std::vector<Part> received;
  /// [R, 3] for ops::permutation_from_runs(): the order of the received rows by expert, then by rank, then by token.
  std::vector<i32> runs;
  /// Number of rows of each expert on this rank.
  std::vector<i64> rows;

  i64 received_rows() const { return received.back().first + received.back().count; }
  /// Returns true if received rows are already ordered by expert, on every rank.
  bool is_sorted() const { return received.size() == 1; }
};

/// Computes the plan of rank `rank` of the exchange from the `counts` of all its ranks, [ranks, num_experts], as
/// returned by ops::count_choices(). The ranks form `parts` neighborhoods with equally many experts; this rank is in
/// neighborhood `part`.
DispatchPlan plan_dispatch(std::span<const i32> counts, i64 num_experts, int rank, int parts, int part);

}  // namespace mcpp
