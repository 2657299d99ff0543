// Reductions and gathers of an MPI group through the shared memory of its nodes.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/mpi_gather.h"
#include "comm/mpi/transport/mpi_calls.h"
#include "comm/mpi/transport/mpi_window.h"

namespace mcpp {

// Reductions for groups with one rank per node.

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
  i64 chunk(DType dtype) const;
  /// Returns the receive buffer of `bytes` bytes for `rank`.
  std::span<std::byte> receive_buffer(int rank, i64 bytes);

  MPI_Comm comm_;
  int rank_, size_;
  WaitPolicy wait_policy_;
  std::vector<std::byte> receive_buffer_;
};

// Reductions for groups that span nodes with several ranks per node.

/// Consecutive ranks of a group on one node.
struct NodeRun {
  int node;          ///< rank of the node's leader among the leaders
  int begin;         ///< first rank of the run
  int first, count;  ///< ranks [first, first + count) within the node
};

/// Splits a group into runs; nodes[r] is the node of rank r. The first rank of each node is its leader; leaders are
/// ordered by rank.
std::vector<NodeRun> runs_on_nodes(const std::vector<int>& nodes);

/// Hierarchical reductions. Tensors pass through the shared window of each node in segments of one slot. The leaders
/// send partial sums along the runs in rank order. Two segments are in flight at a time: the results of one return
/// while the next is summed.
class InterNodeReducer {
 public:
  /// `leaders` is a null communicator on other ranks.
  InterNodeReducer(const std::vector<NodeRun>& runs, const MpiComm& leaders, SharedWindow& window,
                   const WaitPolicy& wait_policy);

  void all_reduce(ReduceOp op, DType dtype, std::byte* data, i64 count);
  /// Runs the reduce-scatter of rank `rank` of `ranks`. `count` is the number of elements in the shard.
  void reduce_scatter(int rank, int ranks, DType dtype, const std::byte* full, std::byte* shard, i64 count);

 private:
  struct Operation {
    ReduceOp op;
    DType dtype;
    /// Number of consecutive parts of a segment: the number of ranks if each rank needs only its own part, 1 if each
    /// rank needs the entire segment.
    int parts;
    /// Copies elements [begin, begin + count) of each part into a slot, or copies results out of it.
    std::function<void(std::byte* slot, i64 begin, i64 count)> copy_in;
    std::function<void(const std::byte* slot, i64 begin, i64 count)> copy_out;
  };
  struct Segment {
    i64 begin, count;
    std::byte* slot;  ///< receives the results
    // Used by leaders only.
    std::vector<std::byte>& acc;  ///< partial sums
    std::optional<ChunkChain> results;
    std::vector<MPI_Request> sent = {};
  };

  bool is_leader() const { return window_.rank() == 0; }
  void run(const Operation& operation, i64 count);
  Segment next_segment(i64 begin, i64 count);
  void start(const Operation& operation, Segment& segment, Segment* last);
  void finish(const Operation& operation, Segment& segment);
  ChainPosition leader_position() const;
  void submit_results(Segment& segment, i64 begin, i64 end, i64 part_bytes) const;
  void add_run(const NodeRun& run, bool is_first, const Operation& operation, i64 begin, std::byte* acc, i64 count);

  const std::vector<NodeRun>& runs_;
  const MpiComm& leaders_;
  SharedWindow& window_;
  const WaitPolicy& wait_policy_;
  std::vector<std::byte> own_;                  // the leader's own contribution
  std::array<std::vector<std::byte>, 2> accs_;  // one per segment in flight
  int current_ = 0;
};

/// Reductions and gathers that pass tensors through the shared window in segments of one slot. Within one node, the
/// ranks divide the sums of a segment; across nodes InterNodeReducer computes them. With one rank per node there is no
/// window and PairwiseReducer is used.
class NodeReducer {
 public:
  /// Collective. nodes[r] is the node of rank r of `comm`.
  NodeReducer(const MpiComm& comm, const std::vector<int>& nodes, WaitPolicy wait_policy);

  bool is_single_node() const { return runs_.size() == 1; }
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
  void reduce_redundantly(ReduceOp op, DType dtype, std::byte* data, i64 count);
  void reduce_by_chunks(ReduceOp op, DType dtype, std::byte* data, i64 count);

  int rank_, size_;
  std::vector<NodeRun> runs_;
  MpiComm node_, leaders_;
  WaitPolicy wait_policy_;
  std::unique_ptr<SharedWindow> window_;
  std::unique_ptr<PairwiseReducer> pairwise_reducer_;
  std::unique_ptr<InterNodeReducer> inter_node_reducer_;
};

}  // namespace mcpp
