// Reductions of a group whose ranks are each on a machine of their own.
#pragma once
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/transport/mpi_calls.h"

namespace mcpp {

/// Every rank sums a part: it gets that part of all others straight from them, so that all links work in both
/// directions at once, and no rank sends more than the sum needs. Sums are by rank.
class RankExchange {
 public:
  /// `comm` outlives this.
  RankExchange(const MpiComm& comm, Patience patience);

  void all_reduce(ReduceOp op, DType dtype, std::byte* data, i64 count);
  /// count: elements of the shard.
  void reduce_scatter(DType dtype, const std::byte* full, std::byte* shard, i64 count);

 private:
  template <class To, class From>
  void swap(const To& send_to, const From& receive_from);
  void sum(ReduceOp op, DType dtype, const std::byte* own, std::byte* out, i64 count);
  void all_reduce_small(ReduceOp op, DType dtype, std::byte* data, i64 count);
  /// Elements of the piece that each rank sums at a time.
  i64 piece(DType dtype) const;
  /// So many bytes of a rank.
  std::span<std::byte> inbox(int rank, i64 bytes);

  MPI_Comm comm_;
  int rank_, size_;
  Patience patience_;
  std::vector<std::byte> inbox_;
};

}  // namespace mcpp
