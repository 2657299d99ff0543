// All-gathers and broadcasts of a group whose ranks are on several machines.
#pragma once
#include <vector>

#include "comm/mpi/transport/mpi_calls.h"

namespace mcpp {

/// Every rank's part goes to each other node once, to one rank there, which hands it on to those beside it. MPI's own
/// send it to each of them. The bytes of a broadcast go to each node once as well.
class NodeGather {
 public:
  /// nodes[r]: the node of rank r of `comm`, which outlives this. No rank of it waits for another here.
  NodeGather(const MpiComm& comm, const std::vector<int>& nodes, Patience patience);

  /// `full`: the parts of all ranks, `bytes` each, of which this rank's own is there.
  void all_gather(std::byte* full, i64 bytes);
  /// From one rank to the next, node by node.
  void broadcast(std::byte* data, i64 bytes, int root);

 private:
  /// A message of a part between this rank and another.
  struct Message {
    int part, peer;
  };

  void start(const std::vector<Message>& messages, bool is_sent, std::byte* full, i64 bytes, i64 begin, i64 count,
             std::vector<MPI_Request>& requests) const;

  const MpiComm& comm_;
  std::vector<int> nodes_;
  Patience patience_;
  std::vector<Message> from_far_, to_far_, from_near_, to_near_;
};

}  // namespace mcpp
