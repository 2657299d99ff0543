// All-gather and broadcast for groups that span nodes.
#pragma once
#include <vector>

#include "comm/mpi/transport/mpi_calls.h"

namespace mcpp {

/// Hierarchical all-gather and broadcast. Each part is sent once to every other node and forwarded within the node;
/// MPI's own all-gather sends it to every rank. A broadcast also sends its bytes to each node once.
class NodeGather {
 public:
  /// nodes[r] is the node of rank r. The constructor does not communicate.
  NodeGather(const MpiComm& comm, const std::vector<int>& nodes, WaitPolicy wait_policy);

  /// Gathers `bytes` bytes per rank into `full`, which already contains this rank's part.
  void all_gather(std::byte* full, i64 bytes);
  /// Broadcasts from `root` along a chain of ranks, node by node.
  void broadcast(std::byte* data, i64 bytes, int root);

 private:
  /// Transfer of a part between this rank and a peer.
  struct Message {
    int part, peer;
  };

  void start(const std::vector<Message>& messages, bool is_sent, std::byte* full, i64 bytes, i64 begin, i64 count,
             std::vector<MPI_Request>& requests) const;

  const MpiComm& comm_;
  std::vector<int> nodes_;
  WaitPolicy wait_policy_;
  std::vector<Message> inter_node_recvs_, inter_node_sends_, intra_node_recvs_, intra_node_sends_;
};

}  // namespace mcpp
