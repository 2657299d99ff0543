// Gradients of parameters that several ranks hold alike and of which each computed only a part (Spread::Partial).
#pragma once
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "parallel/dp/buckets/buffer.h"

namespace mcpp {

/// Those among whom holders of one parameter are found.
struct HolderGroups {
  Communicator& tp;
  /// The ranks of this rank's pipeline that hold the word embeddings; may be null where nothing is placed Partial along
  /// pp.
  Communicator* embedding = nullptr;
};

/// Completes the gradients of a step: over the data-parallel ranks, which the buffers do themselves, and over the
/// holders of what is Partial along tp or pp. Along tp these are norms and learned positions under sequence parallelism
/// (Korthikanti et al. 2022), and keys and values that ranks share: small and many, so that all with the same number of
/// holders are summed as one tensor, once a step. Along pp it is the matrix of tied embeddings, which the stage with
/// the embedding and the one with the output hold.
class PartialGradients {
 public:
  /// The buffers of all chunks of this rank, and the groups: all outlive this. Called by all ranks of the groups, of
  /// which those of tp have the same parameters in the same order. An Internal error for a parameter whose gradient
  /// nobody would sum.
  PartialGradients(std::span<ParamAndGradBuffer* const> buffers, const HolderGroups& groups);

  /// In place of ParamAndGradBuffer::finish() of each buffer, after which shard() holds sums over all ranks. Stages are
  /// summed before the data-parallel ranks where gradients are whole (ZeRO 0 and 1), for the bits of a run without
  /// pipeline, which adds up embedding and output first; after them where they are sharded.
  void finish();

 private:
  void add_groups(const ParamAndGradBuffer& buffer, const Param& param, Communicator& tp);
  void sum_whole_over_stages();
  void sum_shards_over_stages();
  void sum_over_tp(int copies, Communicator& group);

  std::vector<ParamAndGradBuffer*> buffers_;
  int tp_size_;
  Communicator* embedding_;
  std::map<int, std::unique_ptr<Communicator>> neighbours_;  // by how many: parts of the group
  std::map<int, Communicator*> tp_groups_;
};

}  // namespace mcpp
