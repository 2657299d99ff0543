// Reduction of partial gradients (Spread::Partial): each rank has computed a part of the gradient of a replicated
// parameter.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "parallel/dp/buckets/buffer.h"

namespace mcpp {

/// Groups that contain all holders of a parameter.
struct ReplicaGroups {
  Communicator& tp;
  /// Ranks of this rank's pipeline with word embeddings; may be null if nothing is Partial along pp.
  Communicator* embedding = nullptr;
};

/// Completes the gradients of a step: the buffers reduce over the data-parallel ranks, and this class sums over the
/// holders of parameters that are Partial along tp or pp. Along tp these are norms and learned positions under sequence
/// parallelism (Korthikanti et al. 2022), and keys and values shared by ranks. These gradients are small and numerous,
/// so all gradients with the same number of holders are summed as one tensor, once per step. Along pp, the only such
/// parameter is the matrix of tied embeddings, held by the stages of the embedding and the output.
class PartialGradients {
 public:
  /// `buffers` are the buffers of all chunks of this rank. Collective over the groups; the ranks of tp must have the
  /// same parameters in the same order. Throws an Internal error for a parameter whose gradient would not be summed.
  PartialGradients(std::span<ParamAndGradBuffer* const> buffers, const ReplicaGroups& groups);

  /// Replaces ParamAndGradBuffer::finish() of each buffer; afterwards shard() holds sums over all ranks. With
  /// replicated gradients (ZeRO 0 and 1), stages are summed before data-parallel ranks, which is bitwise identical to a
  /// run without pipeline parallelism, where embedding and output are summed first. With sharded gradients, stages are
  /// summed after data-parallel ranks.
  void finish();

 private:
  void add_groups(const ParamAndGradBuffer& buffer, const Param& param, Communicator& tp);
  void sum_full_over_stages();
  void sum_shards_over_stages();
  void sum_over_tp(int copies, Communicator& group);

  std::vector<ParamAndGradBuffer*> buffers_;
  int tp_size_;
  Communicator* embedding_;
  std::map<int, std::unique_ptr<Communicator>> neighbor_groups_;  // subgroups of tp, by size
  std::map<int, Communicator*> tp_groups_;
};

}  // namespace mcpp
