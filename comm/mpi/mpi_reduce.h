// Reductions and gathers of an MPI group through the shared memory of its nodes.
#pragma once
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/inter_node_reducer.h"
#include "comm/mpi/pairwise_reducer.h"
#include "comm/mpi/transport/mpi_window.h"

namespace mcpp {

/// Reductions and gathers that pass tensors through the shared window in segments of one slot. Within one node, the
/// ranks divide the sums of a segment; across nodes InterNodeReducer computes them. With one rank per node there is no
/// window and PairwiseReducer is used.
class NodeReducer {
 public:
  /// nodes[r] is the node of rank r of `comm`. Collective.
  NodeReducer(const MpiComm& comm, const std::vector<int>& nodes, WaitPolicy wait_policy);

  bool on_one_node() const { return runs_.size() == 1; }
  void all_reduce(ReduceOp op, DType dtype, std::byte* data, i64 count);
  /// `count` is the number of elements in the shard.
  void reduce_scatter(DType dtype, const std::byte* full, std::byte* shard, i64 count);

  // Available on one node only.
  SharedWindow& window() { return *window_; }
  void all_gather(const std::byte* shard, std::byte* full, i64 bytes);
  void broadcast(std::byte* data, i64 bytes, int root);
  /// Exchanges `bytes` bytes between each pair of ranks.
  void all_to_all(const std::byte* in, std::byte* out, i64 bytes);

 private:
  void reduce_alone(ReduceOp op, DType dtype, std::byte* data, i64 count);
  void share_sums(ReduceOp op, DType dtype, std::byte* data, i64 count);

  int rank_, size_;
  std::vector<NodeRun> runs_;
  MpiComm node_, leaders_;
  WaitPolicy wait_policy_;
  std::unique_ptr<SharedWindow> window_;
  std::unique_ptr<PairwiseReducer> exchange_;
  std::unique_ptr<InterNodeReducer> inter_node_reducer_;
};

}  // namespace mcpp
