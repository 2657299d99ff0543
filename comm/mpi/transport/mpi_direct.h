// Zero-copy collectives within a node, operating on the peers' tensors in place.
#pragma once
#include "comm/communicator.h"
#include "comm/mpi/transport/peer_messages.h"

namespace mcpp {

/// Collectives for groups whose ranks are all on the node of `window`. Each operation returns false without effect, on
/// all ranks, if some rank's tensor is in memory that not all ranks can map.
class DirectCollectives {
 public:
  DirectCollectives(SharedWindow& window, PeerArenas& arenas) : window_(window), peers_(window, arenas) {}

  bool all_reduce(ReduceOp op, Tensor& t);
  bool all_gather(const Tensor& shard, Tensor& full);
  bool reduce_scatter(const Tensor& full, Tensor& shard);
  bool broadcast(Tensor& t, int root);
  bool all_to_all(const Tensor& in, Tensor& out);
  /// Throws if counts do not match, even if the tensors cannot be mapped.
  bool all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive);

 private:
  SharedWindow& window_;
  PeerTensors peers_;
};

}  // namespace mcpp
