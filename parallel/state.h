// The groups of ranks that one rank works in. Made once from the world and handed down by reference.
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

/// What the collectives of a training's steps, or of its evaluations, ask of a group.
enum class StepUse : u8 {
  None,     ///< nothing: it is for messages, for checks and saves, or its user prepares it
  InTurn,   ///< sums and gathers of which no two kinds are under way at a time
  AtATime,  ///< gathers while sums are under way
};

struct NamedGroup {
  std::string_view name;
  Communicator* group;
  StepUse use;
};

struct ParallelState {
  Topology topology;
  AxisValues me;         ///< in the dense grid
  AxisValues expert_me;  ///< in the expert grid
  int output_rank;       ///< the position in the pipeline of the rank with the output layer
  Communicator& world;   ///< outlives this

  std::shared_ptr<Communicator> tp = {};  ///< those that share one copy of each layer
  /// Of the ranks that have other positions of the same samples: neighbours that exchange heads, and those whose keys
  /// and values meet (SequenceCut).
  std::unique_ptr<Communicator> cp_heads = {}, cp_ring = {};
  /// tp x cp: those that meet inside a layer. Without context parallelism `tp` itself.
  std::shared_ptr<Communicator> tp_cp = {};
  /// Those that read different samples.
  std::shared_ptr<Communicator> data = {};
  /// Those that hold the same weights of the dense layers and over which their gradients, and losses, are summed: those
  /// of `data`, and those that see other positions of the same samples. Without context parallelism `data` itself.
  std::shared_ptr<Communicator> data_context = {};
  /// Of data_context: those that together hold one copy of what ZeRO shares, and those that hold the same part of it.
  std::unique_ptr<Communicator> dp_shard = {}, dp_replicate = {};
  /// Of dp_shard: the neighbours of zero_hpz_partition_size, and those at the same place among such neighbours. Null
  /// where that is 1.
  std::unique_ptr<Communicator> dp_node = {}, dp_across = {};
  /// tp x dp_shard: those that together hold one copy of a stage's weights where ZeRO cuts them.
  std::unique_ptr<Communicator> tp_dp_shard = {};
  /// Those that meet inside a layer: tp x cp, and with experts all whose tokens may come to one rank. Often tp_cp
  /// itself.
  std::shared_ptr<Communicator> layer = {};
  /// Where there are experts, of their grid, else null: tp x ep, those that exchange tokens; and what tp, data_context,
  /// dp_shard, dp_replicate, tp_dp_shard and model are to the dense layers.
  std::unique_ptr<Communicator> expert_exchange = {}, expert_tp = {}, expert_data = {}, expert_dp_shard = {},
                                expert_dp_replicate = {}, expert_tp_dp_shard = {}, expert_model = {};
  std::unique_ptr<Communicator> pp = {};           ///< the stages of one pipeline, in order: activations go over it
  std::unique_ptr<Communicator> pp_backward = {};  ///< the same ranks once more, for the gradients of activations
  std::unique_ptr<Communicator> model = {};  ///< those that together hold one copy of the weights: tp x pp, for norms
  /// The ranks with word embeddings; null on ranks without.
  std::unique_ptr<Communicator> embedding = {};

  /// What each of these groups sent and waited for: "tp", "dp" (data), "dp_cp" (data_context, where it is another),
  /// "dp_shard" and so on, by its name above.
  std::map<std::string, std::shared_ptr<CommMeter>> meters = {};

  /// Every group that this rank is in, once, by its name in `meters`; "world" is all ranks.
  std::vector<NamedGroup> groups() const;
  /// Over whom the gradients of parameters on a grid are summed, in the parts of ZeRO; of Dense: data_context.
  DataParallelGroups gradient_groups(GridKind grid) const;
  ContextParallel context_parallel(CpCommType comm_type) const;
  ExpertParallel expert_parallel(TokenDispatcherType dispatcher) const;
  /// Whether the group of this name carries messages of the pipeline, for which a rank waits in its bubble.
  static bool is_pipeline(std::string_view name) { return name == "pp" || name == "pp_backward"; }
  /// Whether this rank is the one of all that hold the same box to count it in norms and to save it.
  bool stands_for_holders(const Placement& placement) const {
    return placement.stands_for_holders(placement.grid == GridKind::Dense ? me : expert_me);
  }
};

/// Called by all ranks of `world`. `output_rank` is the position in the pipeline of the rank with the output layer,
/// -1 for the last one. The recorder and the profiler, if any, note what the groups do and outlive them. Throws
/// BadInput when the world does not divide by `sizes`.
ParallelState make_parallel_state(Communicator& world, const ParallelSizes& sizes, int output_rank = -1,
                                  FlightRecorder* recorder = nullptr, Profiler* profiler = nullptr);

}  // namespace mcpp
