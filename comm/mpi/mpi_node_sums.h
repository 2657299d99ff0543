// Reductions of a group over nodes of which some have several of its ranks.
#pragma once
#include <array>
#include <functional>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/mpi_chain.h"
#include "comm/mpi/transport/mpi_window.h"

namespace mcpp {

/// Ranks of a group that follow one another on one node.
struct NodeRun {
  int node;          ///< rank of its leader among the leaders
  int begin;         ///< its first rank
  int first, count;  ///< ranks inside the node
};

/// nodes[r]: the node of rank r. The first rank of each node is its leader; leaders are numbered by their ranks.
std::vector<NodeRun> runs_on_nodes(const std::vector<int>& nodes);

/// Tensors go through the window of each node in segments of a slot; the leader of each node does its sums, which visit
/// the runs in order. Two segments are under way at a time: sums of the one come back while the next is added up.
class NodeSums {
 public:
  /// leaders: null on ranks that are none. All that is referred to outlives this.
  NodeSums(const std::vector<NodeRun>& runs, const MpiComm& leaders, SharedWindow& window, const Patience& patience);

  void all_reduce(ReduceOp op, DType dtype, std::byte* data, i64 count);
  /// On rank `rank` of so many. count: elements of the shard.
  void reduce_scatter(int rank, int ranks, DType dtype, const std::byte* full, std::byte* shard, i64 count);

 private:
  struct Operation {
    ReduceOp op;
    DType dtype;
    int parts;  ///< as many ranks, whose parts of a segment lie one after another, and only their nodes need them; 1:
                ///< all do
    /// Puts elements [begin, begin + count), of each part, into a slot, or takes sums out.
    std::function<void(std::byte* slot, i64 begin, i64 count)> fill;
    std::function<void(const std::byte* slot, i64 begin, i64 count)> empty;
  };
  struct Segment {
    i64 begin, count;
    std::byte* slot;  ///< where its sums come
    // On leaders.
    std::vector<std::byte>& acc;  ///< partial sums
    std::optional<PieceChain> results;
    std::vector<MPI_Request> sent = {};
  };

  bool is_leader() const { return window_.rank() == 0; }
  void run(const Operation& operation, i64 count);
  Segment next_segment(i64 begin, i64 count);
  void start(const Operation& operation, Segment& segment, Segment* last);
  void finish(const Operation& operation, Segment& segment);
  ChainPlace place_of_leader() const;
  void pass_on(Segment& segment, i64 begin, i64 end, i64 part_bytes) const;
  void add_run(const NodeRun& run, bool is_first, const Operation& operation, i64 begin, std::byte* acc, i64 count);

  const std::vector<NodeRun>& runs_;
  const MpiComm& leaders_;
  SharedWindow& window_;
  const Patience& patience_;
  std::vector<std::byte> own_;                  // what a leader adds of its own
  std::array<std::vector<std::byte>, 2> accs_;  // of two segments
  int turn_ = 0;
};

}  // namespace mcpp
