// Reductions for groups with one rank per node.
#pragma once
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/transport/mpi_calls.h"

namespace mcpp {

/// Direct-exchange reductions. Each rank reduces one part, which it receives directly from all other ranks, so that all
/// links are used in both directions and no rank sends more than the minimum. Sums use rank order.
class PairwiseReducer {
 public:
  PairwiseReducer(const MpiComm& comm, WaitPolicy wait_policy);

  void all_reduce(ReduceOp op, DType dtype, std::byte* data, i64 count);
  /// `count` is the number of elements in the shard.
  void reduce_scatter(DType dtype, const std::byte* full, std::byte* shard, i64 count);

 private:
  template <class To, class From>
  void swap(const To& send_to, const From& receive_from);
  void sum(ReduceOp op, DType dtype, const std::byte* own, std::byte* out, i64 count);
  void all_reduce_small(ReduceOp op, DType dtype, std::byte* data, i64 count);
  /// Returns the number of elements that each rank reduces at a time.
  i64 piece(DType dtype) const;
  /// Returns the receive buffer of `bytes` bytes for `rank`.
  std::span<std::byte> receive_buffer(int rank, i64 bytes);

  MPI_Comm comm_;
  int rank_, size_;
  WaitPolicy wait_policy_;
  std::vector<std::byte> receive_buffer_;
};

}  // namespace mcpp
