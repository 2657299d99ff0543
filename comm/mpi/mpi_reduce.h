// Reductions and gathers of an MPI group through the shared memory of its nodes.
#pragma once
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/mpi_window.h"

namespace mcpp {

/// Tensors pass through the window in segments of a slot. On one node the ranks share the sums of a segment between
/// them; between nodes, the first rank of each node does all of them.
class NodeReducer {
 public:
  /// nodes[r]: the node of rank r of `comm`. may_spin: as of SharedWindow. Called by all ranks.
  NodeReducer(const MpiComm& comm, const std::vector<int>& nodes, bool may_spin);

  bool on_one_node() const { return runs_.size() == 1; }
  SharedWindow& window() { return *window_; }
  void all_reduce(ReduceOp op, DType dtype, std::byte* data, i64 count);
  /// count: elements of the shard.
  void reduce_scatter(DType dtype, const std::byte* full, std::byte* shard, i64 count);
  /// Only on one node.
  void all_gather(const std::byte* shard, std::byte* full, i64 bytes);

 private:
  /// Ranks that follow one another on one node. A sum visits the runs in order.
  struct Run {
    int node;          ///< rank of its leader among the leaders
    int first, count;  ///< ranks inside the node
    int begin;         ///< the first of them, in the group
  };

  void reduce_alone(ReduceOp op, DType dtype, std::byte* data, i64 count);
  void share_sums(ReduceOp op, DType dtype, std::byte* data, i64 count);
  /// `of_rank`: how many of the elements, one after another, are each rank's; 0: all are everyone's.
  void sum_in_slot_0(ReduceOp op, DType dtype, i64 count, i64 of_rank);
  void reduce_over_nodes(ReduceOp op, DType dtype, i64 count, i64 of_rank);
  void start_telling(DType dtype, i64 begin, i64 end, i64 of_rank, std::vector<MPI_Request>& told);
  void add_run(const Run& run, bool is_first, ReduceOp op, DType dtype, i64 begin, std::byte* acc, i64 count);

  int rank_, size_;
  std::vector<Run> runs_;
  MpiComm node_, leaders_;
  std::unique_ptr<SharedWindow> window_;
  std::vector<std::byte> acc_;  // partial sums of a segment, on leaders
};

}  // namespace mcpp
