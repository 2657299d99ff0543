// Exchange of rows in a group of ranks, in which each row is sent to any number of ranks, and its backward pass.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "parallel/ep/row_parts.h"

namespace mcpp {

/// Work that a rank executes while communication is in flight.
using OverlapFn = std::function<void()>;
/// OverlapFn of a rank that only waits.
inline void do_nothing() {}

/// Sends each of N rows to the ranks listed for it, once to each, and returns sums of what these ranks compute from it.
/// Rows arrive in the order of the sending ranks, then of their rows.
class RowExchange {
 public:
  /// `destinations`, int32 [N, m]: distinct ranks of the group for each row; negative = none. `sent` and `received` are
  /// the numbers of rows for and from each rank; on the meta device they are assumptions.
  RowExchange(Communicator& group, const Tensor& destinations, std::span<const i64> sent,
              std::span<const i64> received);

  i64 received_rows() const { return end_of(received_); }
  /// Returns the received rows [received_rows(), w] given the rows [N, w] of this rank. Calls `overlap_fn` once.
  Tensor send(const Tensor& rows, const OverlapFn& overlap_fn) const;
  /// Returns, for each row of this rank, the sum of `rows` [received_rows(), w] over the ranks that received it, in the
  /// order of `destinations`, rounded once. Calls `overlap_fn` once.
  Tensor return_sums(const Tensor& rows, const OverlapFn& overlap_fn) const;

 private:
  Communicator& group_;
  std::vector<Part> sent_, received_;  // rows by rank of the group
  Tensor sources_;                     // int32 [sent rows]: row of each sent row
  Tensor slots_;                       // int32 [N, m]: sent rows of each row
};

}  // namespace mcpp
