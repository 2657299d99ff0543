// Who sends how many rows of tokens to whom, and in which order they come to lie: worked out on the host from how many
// tokens each rank has for each expert. All orders are fixed, so that the same layout gives the same bits.
#pragma once
#include <span>
#include <vector>

#include "comm/communicator.h"

namespace mcpp {

/// Of one rank and one microbatch of T tokens, each of which k experts take. A choice is one of these T k pairs; those
/// that were dropped have no expert. Which of them are where ops::sort_choices() says, on the device.
struct DispatchPlan {
  i64 choices = 0;  ///< that were not dropped: the rows that this rank sends, by expert, then by token
  /// By part of the experts: of these rows, those whose experts it has.
  std::vector<Part> sent;
  /// By rank of the exchange: of the M rows that come here, those that it sends, each by expert, then by token.
  std::vector<Part> received;
  /// [R, 3] for ops::order_of_runs(): which of the received rows is the i-th by expert, then by rank, then by token.
  std::vector<i32> runs;
  /// Rows of each expert that this rank has.
  std::vector<i64> rows;

  i64 received_rows() const { return received.back().first + received.back().count; }
  /// Every rank has received rows in the order of their experts.
  bool is_sorted() const { return received.size() == 1; }
};

/// `counts` of every rank of the exchange, among which this one is number `rank`: [ranks, num_experts], as
/// ops::count_choices() of each. The ranks are `parts` neighbourhoods, each of which has as many experts; this one is
/// in neighbourhood `part`.
DispatchPlan plan_dispatch(std::span<const i32> counts, i64 num_experts, int rank, int parts, int part);

}  // namespace mcpp
