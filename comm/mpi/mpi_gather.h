// All-gather and broadcast for groups that span nodes.
#pragma once
#include <span>
#include <vector>

#include "comm/mpi/transport/mpi_calls.h"

namespace mcpp {

// Pipelined transfer of bytes along a chain of ranks.

/// Position of a rank in a chain.
struct ChainPosition {
  int first;         ///< rank that owns the bytes
  int source, next;  ///< previous and next rank of the chain; -1: none
};

/// Pipelined chain broadcast: forwards bytes from the first rank to the others chunk by chunk, while later chunks are
/// still being produced. No rank sends a received chunk more than once. All ranks must submit the same chunks in the
/// same order.
class ChunkChain {
 public:
  /// The submitted chunks must stay valid until finish().
  ChunkChain(const MpiComm& comm, ChainPosition position, int tag, const WaitPolicy& wait_policy);

  /// Submits a chunk that all ranks receive. The first rank provides its contents; on the others the memory must not be
  /// used until finish().
  void submit_to_all(std::span<std::byte> chunk);
  /// Submits a chunk that only `rank` receives.
  void submit_to(int rank, std::span<std::byte> chunk);
  /// Forwards the chunks received so far. Returns true if all chunks were forwarded; until then, the ranks of the chain
  /// must not send later data with the same tag.
  bool forward_received();
  /// Waits until all chunks have been received and sent.
  void finish();

 private:
  void send(std::span<std::byte> chunk, int rank);
  void receive(std::span<std::byte> chunk, int rank, MPI_Request& request) const;

  MPI_Comm comm_;
  int me_, tag_;
  ChainPosition position_;
  const WaitPolicy& wait_policy_;
  std::vector<std::span<std::byte>> chunks_;  // chunks received from the source
  std::vector<MPI_Request> arrived_;          // receive requests, by chunk
  std::size_t num_forwarded_ = 0;
  std::vector<MPI_Request> requests_;  // requests that wait_all() completes
};

/// Hierarchical all-gather and broadcast. Each part is sent once to every other node and forwarded within the node,
/// whereas MPI_Allgather sends it to every rank. A broadcast also sends its bytes to each node once.
class NodeGather {
 public:
  /// Does not communicate. nodes[r] is the node of rank r.
  NodeGather(const MpiComm& comm, const std::vector<int>& nodes, WaitPolicy wait_policy);

  /// Gathers `bytes` bytes per rank into `full`, which already contains this rank's part.
  void all_gather(std::byte* full, i64 bytes);
  /// Broadcasts from `root` along a chain of ranks that visits one node after the other.
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
