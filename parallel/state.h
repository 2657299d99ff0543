// Process groups of one rank, created once from the world and passed by reference.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/metered.h"
#include "parallel/cp/context_parallel.h"
#include "parallel/dp/buckets/buffer.h"
#include "parallel/ep/expert_parallel.h"
#include "parallel/topology.h"

namespace mcpp {

/// Use of a group by collectives of training or evaluation steps. It determines how the group is connected in advance.
enum class CollectiveUse : u8 {
  None,        ///< not connected in advance: steps run no collectives on the group, or its user connects it
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
///   group            ranks of the group                            used for
///   tp               share one copy of each layer                  tensor-parallel collectives
///   cp_heads         cp neighbors that exchange heads              all-to-all (SequencePartition)
///   cp_ring          cp ranks at the same index of cp_heads        ring attention, key/value all-gather
///   tp_cp            tp x cp; tp itself if cp = 1                  collectives within a layer on one sample
///   dp               read different samples                        distribution of batches
///   dp_cp            hold the same dense weights: dp x cp;         reduction of gradients and losses
///                    dp itself if cp = 1
///   dp_shard         dp_cp ranks with one copy of what ZeRO        reduce-scatter, all-gather (ZeRO)
///                    shards
///   dp_replicate     dp_cp ranks with the same shard               all-reduce of shards (HSDP)
///   dp_node          node_ranks neighbors in dp_shard; null if     secondary weight shards (hpZ)
///                    that is 1
///   dp_across        dp_shard ranks at the same index of dp_node;  sums across nodes
///                    null if dp_node is
///   tp_dp_shard      tp x dp_shard: one copy of a stage's weights  complete matrices of sharded weights
///   layer_group      communicate within a layer: tp x cp, and all  agreement on a step
///                    ranks that exchange tokens
///   expert_exchange  tp x ep of the expert grid                    token dispatch
///   expert_node      ranks of expert_exchange on one node; null    token dispatch within a node
///                    unless the dispatcher is hierarchical
///   pp               stages of one pipeline, in order              activations
///   pp_backward      same ranks as pp                              gradients of activations
///   tp_pp            one copy of the weights                       norms
///   embedding        hold the word embeddings; null elsewhere      gradients of word embeddings
///
/// The groups expert_tp, expert_dp, expert_dp_shard, expert_dp_replicate, expert_tp_dp_shard and expert_tp_pp are the
/// counterparts of tp, dp_cp, dp_shard, dp_replicate, tp_dp_shard and tp_pp in the expert grid. All are null in models
/// without experts.
struct ParallelState {
  Layout layout;
  Topology topology;
  AxisValues coordinates;         ///< coordinates in the dense grid
  AxisValues expert_coordinates;  ///< coordinates in the expert grid
  int output_rank;                ///< pipeline position of the rank with the output layer
  /// Pipeline position of the rank with the final norm and multi-token prediction. Together with the first rank, it
  /// holds the word embeddings: tied embeddings require that it is also the rank with the output layer.
  int final_norm_rank;
  Communicator& world;  ///< all ranks

  std::shared_ptr<Communicator> tp = {};
  std::unique_ptr<Communicator> cp_heads = {}, cp_ring = {};
  std::shared_ptr<Communicator> tp_cp = {};
  std::shared_ptr<Communicator> dp = {};
  std::shared_ptr<Communicator> dp_cp = {};
  std::unique_ptr<Communicator> dp_shard = {}, dp_replicate = {};
  std::unique_ptr<Communicator> dp_node = {}, dp_across = {};
  std::unique_ptr<Communicator> tp_dp_shard = {};
  std::shared_ptr<Communicator> layer_group = {};
  std::shared_ptr<const ExchangeNodes> exchange_nodes = {};  ///< null unless the dispatcher is hierarchical
  std::unique_ptr<Communicator> expert_exchange = {}, expert_node = {}, expert_tp = {}, expert_dp = {},
                                expert_dp_shard = {}, expert_dp_replicate = {}, expert_tp_dp_shard = {},
                                expert_tp_pp = {};
  std::unique_ptr<Communicator> pp = {};
  std::unique_ptr<Communicator> pp_backward = {};
  std::unique_ptr<Communicator> tp_pp = {};
  std::unique_ptr<Communicator> embedding = {};

  /// Communication statistics by group name: "tp", "dp", "dp_cp" (if distinct from dp), "dp_shard" ...
  std::map<std::string, std::shared_ptr<CommMeter>> meters = {};

  /// Returns every distinct group of this rank under its name in `meters`; "world" has all ranks.
  std::vector<NamedGroup> groups() const;
  /// Returns the groups that reduce and shard the gradients of parameters on a grid; for Dense, they divide
  /// dp_cp.
  DataParallelGroups gradient_groups(GridKind grid) const;
  ContextParallel context_parallel() const;
  ExpertParallel expert_parallel() const;
  /// Returns true if this rank has the final norm or the output layer.
  bool has_output_part() const { return coordinates.pp == output_rank || coordinates.pp == final_norm_rank; }
  /// Returns true if the group carries pipeline messages. Waiting for these messages is the pipeline bubble.
  static bool is_pipeline(std::string_view name) { return name == "pp" || name == "pp_backward"; }
  /// Returns true if this rank, among all ranks with the same box, counts the box in norms and saves it.
  bool is_primary_replica(const Placement& placement) const {
    return placement.is_primary_replica(placement.grid == GridKind::Dense ? coordinates : expert_coordinates);
  }
};

/// Creates all groups, including the groups of the expert grid if the model has experts. Collective over `world`, whose
/// size replaces layout.dp. The recorder and the profiler (may be null) record the groups' operations. `nodes` is the
/// node of each rank; empty: all ranks are on one node. Throws BadInput if the axes do not divide the world.
ParallelState make_parallel_state(Communicator& world, const Layout& layout, bool has_experts = false,
                                  FlightRecorder* recorder = nullptr, Profiler* profiler = nullptr,
                                  std::span<const int> nodes = {});

}  // namespace mcpp
