// Reductions and gathers of an MPI group through the shared memory of its nodes.
#pragma once
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/mpi_exchange.h"
#include "comm/mpi/mpi_node_sums.h"
#include "comm/mpi/transport/mpi_window.h"

namespace mcpp {

/// Tensors pass through the window in segments of a slot. On one node the ranks share the sums of a segment between
/// them; between nodes NodeSums does them. Ranks that are each on a node of their own have no window: a RankExchange
/// sums.
class NodeReducer {
 public:
  /// nodes[r]: the node of rank r of `comm`, which outlives this. Called by all ranks.
  NodeReducer(const MpiComm& comm, const std::vector<int>& nodes, Patience patience);

  bool on_one_node() const { return runs_.size() == 1; }
  void all_reduce(ReduceOp op, DType dtype, std::byte* data, i64 count);
  /// count: elements of the shard.
  void reduce_scatter(DType dtype, const std::byte* full, std::byte* shard, i64 count);

  // Only on one node.
  SharedWindow& window() { return *window_; }
  void all_gather(const std::byte* shard, std::byte* full, i64 bytes);
  void broadcast(std::byte* data, i64 bytes, int root);
  /// `bytes` for each rank.
  void all_to_all(const std::byte* in, std::byte* out, i64 bytes);

 private:
  void reduce_alone(ReduceOp op, DType dtype, std::byte* data, i64 count);
  void share_sums(ReduceOp op, DType dtype, std::byte* data, i64 count);

  int rank_, size_;
  std::vector<NodeRun> runs_;
  MpiComm node_, leaders_;
  Patience patience_;
  std::unique_ptr<SharedWindow> window_;
  std::unique_ptr<RankExchange> exchange_;
  std::unique_ptr<NodeSums> node_sums_;
};

}  // namespace mcpp
