// Collectives inside a node without copies in between: ranks work on one another's tensors in place.
#pragma once
#include "comm/communicator.h"
#include "comm/mpi/transport/peer_memory.h"

namespace mcpp {

/// For groups whose ranks are all on the node of `window`. Each operation returns false, and has done nothing, when
/// the tensor of some rank is not in memory that all of them can map; the same on all ranks.
class DirectCollectives {
 public:
  DirectCollectives(SharedWindow& window, PeerArenas& arenas) : window_(window), peers_(window, arenas) {}

  bool all_reduce(ReduceOp op, Tensor& t);
  bool all_gather(const Tensor& shard, Tensor& full);
  bool reduce_scatter(const Tensor& full, Tensor& shard);
  bool broadcast(Tensor& t, int root);
  bool all_to_all(const Tensor& in, Tensor& out);
  /// Finds counts that do not agree, also where it returns false.
  bool all_to_all_v(const Tensor& in, std::span<const Part> send, Tensor& out, std::span<const Part> receive);

 private:
  SharedWindow& window_;
  PeerTensors peers_;
};

}  // namespace mcpp
