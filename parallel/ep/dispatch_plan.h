// Who sends the rows of which tokens to whom, and in which order they come to lie: worked out on the host from the
// experts of each token. All orders are fixed, so that the same layout gives the same bits.
#pragma once
#include <span>
#include <vector>

#include "comm/communicator.h"

namespace mcpp {

/// Of one rank and one microbatch of T tokens, each of which k experts take. A choice is one of these T k pairs; those
/// that were dropped have no expert (-1).
struct DispatchPlan {
  /// [N] the token of each choice that was not dropped, by expert, then by token: the rows that this rank sends.
  std::vector<i32> tokens;
  /// [T, k] the row of each choice among these; -1 = dropped.
  std::vector<i32> slots;
  /// By part of the experts: of these rows, those whose experts it has.
  std::vector<Part> sent;
  /// By rank of the exchange: of the M rows that come here, those that it sends, each by expert, then by token.
  std::vector<Part> received;
  /// [M] which of the received rows is the i-th by expert, then by rank, then by token; and the way back.
  std::vector<i32> by_expert, by_rank;
  /// Rows of each expert that this rank has.
  std::vector<i64> rows;

  /// Every rank has received rows in the order of their experts.
  bool is_sorted() const { return received.size() == 1; }
};

/// How often each expert occurs in `experts`, [T, k]; negative = dropped.
std::vector<i32> count_choices(std::span<const i32> experts, i64 num_experts);

/// `experts` of each token, [T, k]; `counts` of every rank of the exchange, [ranks, num_experts], as count_choices() of
/// each. The ranks are `parts` neighbourhoods, each of which has as many experts; this one is in neighbourhood `part`.
DispatchPlan plan_dispatch(std::span<const i32> experts, i64 topk, std::span<const i32> counts, i64 num_experts,
                           int parts, int part);

}  // namespace mcpp
