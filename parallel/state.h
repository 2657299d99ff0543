// Process groups of one rank, created once from the world and passed by reference.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/metered.h"
#include "parallel/cp/context_parallel.h"
#include "parallel/dp/buckets/buffer.h"
#include "parallel/ep/expert_parallel.h"
#include "parallel/topology.h"

namespace mcpp {

/// Use of a group by collectives of training or evaluation steps; determines how it is connected in advance.
enum class CollectiveUse : u8 {
  None,        ///< none: used for messages, checks and saves, or connected by its user
  Serialized,  ///< reductions and gathers that never overlap with each other
  Overlapped,  ///< gathers that overlap with reductions
};

struct NamedGroup {
  std::string_view name;
  Communicator* group;
  CollectiveUse use;
};

/// Process groups and coordinates of one rank. Neighbors have consecutive indices in the group that is split.
///
///   group                ranks of the group                       used for
///   tp                   share one copy of each layer             tensor-parallel collectives
///   cp_heads             cp neighbors that exchange heads         all-to-all (SequencePartition)
///   cp_ring              cp ranks at the same index of cp_heads   ring attention, key/value all-gather
///   tp_cp                tp x cp (tp itself if cp = 1)            collectives within a layer on one sample
///   data                 read different samples (dp)              distribution of batches
///   dp_cp         hold the same dense weights (dp x cp;    reduction of gradients and losses
///                        data itself if cp = 1)
///   dp_shard             dp_cp ranks with one copy of      reduce-scatter, all-gather (ZeRO)
///                        what ZeRO shards
///   dp_replicate         dp_cp ranks with the same shard   all-reduce of shards (HSDP)
///   dp_node              zero_hpz_partition_size neighbors in     secondary weight shards (hpZ)
///                        dp_shard; null if that is 1
///   dp_across            dp_shard ranks at the same index of      sums across nodes
///                        dp_node; null like it
///   tp_dp_shard          tp x dp_shard: one copy of a stage's     whole matrices of sharded weights
///                        weights
///   layer                communicate within a layer: tp x cp,     agreement on a step
///                        plus all ranks that exchange tokens
///   expert_exchange      tp x ep of the expert grid               token dispatch
///   pp                   stages of one pipeline, in order         activations
///   pp_backward          same ranks as pp                         gradients of activations
///   model                tp x pp: one copy of the weights         norms
///   embedding            hold the word embeddings; null on        tied embedding gradients
///                        other ranks
///
/// The groups expert_tp, expert_data, expert_dp_shard, expert_dp_replicate, expert_tp_dp_shard and expert_model are the
/// counterparts of tp, dp_cp, dp_shard, dp_replicate, tp_dp_shard and model in the expert grid. All expert
/// groups are null in models without experts.
struct ParallelState {
  Topology topology;
  AxisValues me;         ///< coordinates in the dense grid
  AxisValues expert_me;  ///< coordinates in the expert grid
  int output_rank;       ///< pipeline position of the rank with the output layer
  Communicator& world;   ///< all ranks

  std::shared_ptr<Communicator> tp = {};
  std::unique_ptr<Communicator> cp_heads = {}, cp_ring = {};
  std::shared_ptr<Communicator> tp_cp = {};
  std::shared_ptr<Communicator> data = {};
  std::shared_ptr<Communicator> dp_cp = {};
  std::unique_ptr<Communicator> dp_shard = {}, dp_replicate = {};
  std::unique_ptr<Communicator> dp_node = {}, dp_across = {};
  std::unique_ptr<Communicator> tp_dp_shard = {};
  std::shared_ptr<Communicator> layer = {};
  std::unique_ptr<Communicator> expert_exchange = {}, expert_tp = {}, expert_data = {}, expert_dp_shard = {},
                                expert_dp_replicate = {}, expert_tp_dp_shard = {}, expert_model = {};
  std::unique_ptr<Communicator> pp = {};
  std::unique_ptr<Communicator> pp_backward = {};
  std::unique_ptr<Communicator> model = {};
  std::unique_ptr<Communicator> embedding = {};

  /// Communication statistics by group name: "tp", "dp" (data), "dp_cp" (dp_cp, if distinct), "dp_shard" and so
  /// on.
  std::map<std::string, std::shared_ptr<CommMeter>> meters = {};

  /// Returns every distinct group of this rank under its name in `meters`; "world" has all ranks.
  std::vector<NamedGroup> groups() const;
  /// Returns the groups that reduce and shard the gradients of parameters on a grid; for Dense, they divide
  /// dp_cp.
  DataParallelGroups gradient_groups(GridKind grid) const;
  ContextParallel context_parallel(CpCommType comm_type) const;
  ExpertParallel expert_parallel(TokenDispatcherType dispatcher) const;
  /// Returns true if the group carries pipeline messages, for which a rank waits in its bubble.
  static bool is_pipeline(std::string_view name) { return name == "pp" || name == "pp_backward"; }
  /// Returns true if this rank is the one, among all with the same box, that counts it in norms and saves it.
  bool is_primary_replica(const Placement& placement) const {
    return placement.is_primary_replica(placement.grid == GridKind::Dense ? me : expert_me);
  }
};

/// Creates all groups. Collective over `world`. `output_rank` is the pipeline position of the rank with the output
/// layer, -1 for the last one. The recorder and the profiler (may be null) record the groups' operations. Throws
/// BadInput if `sizes` do not divide the world.
ParallelState make_parallel_state(Communicator& world, const ParallelSizes& sizes, int output_rank = -1,
                                  FlightRecorder* recorder = nullptr, Profiler* profiler = nullptr);

}  // namespace mcpp
