#include "parallel/state.h"

#include <algorithm>

namespace mcpp {
namespace {

/// Splits the world into groups; all ranks make all groups, in the same order.
class GroupMaker {
 public:
  GroupMaker(Communicator& world, ParallelState& state) : world_(world), state_(state) {}

  std::unique_ptr<Communicator> over(const char* name, const Grid& grid, Axes axes) {
    return split(name, grid.group_index(world_.rank(), axes), grid.group_rank(world_.rank(), axes));
  }
  std::unique_ptr<Communicator> split(const char* name, int color, int key) {
    const auto meter = state_.meters[name] = std::make_shared<CommMeter>();
    return make_metered(world_.split(color, key), meter);
  }

 private:
  Communicator& world_;
  ParallelState& state_;
};

}  // namespace

ParallelState make_parallel_state(Communicator& world, const ParallelSizes& sizes, int output_rank) {
  const Topology topology(world.size(), sizes);
  const int rank = world.rank();
  const Grid &dense = topology.dense(), &expert = topology.expert();
  ParallelState state{.topology = topology,
                      .me = dense.coordinates(rank),
                      .expert_me = expert.coordinates(rank),
                      .world = world,
                      .tp = {},
                      .cp = {},
                      .dp = {},
                      .dp_cp = {},
                      .dp_shard = {},
                      .dp_replicate = {},
                      .pp = {},
                      .pp_backward = {},
                      .model = {},
                      .embedding = {},
                      .ep = {},
                      .expert_tp = {},
                      .expert_dp = {},
                      .meters = {}};
  GroupMaker groups(world, state);
  state.tp = groups.over("tp", dense, {Axis::Tp});
  state.cp = groups.over("cp", dense, {Axis::Cp});
  state.dp = groups.over("dp", dense, {Axis::Dp});
  state.dp_cp = groups.over("dp_cp", dense, {Axis::Dp, Axis::Cp});
  state.pp = groups.over("pp", dense, {Axis::Pp});
  state.pp_backward = groups.over("pp_backward", dense, {Axis::Pp});
  state.model = groups.over("model", dense, {Axis::Tp, Axis::Pp});
  state.ep = groups.over("ep", expert, {Axis::Ep});
  state.expert_tp = groups.over("expert_tp", expert, {Axis::Tp});
  state.expert_dp = groups.over("expert_dp", expert, {Axis::Dp});

  const int instances = static_cast<int>(sizes.num_distributed_optimizer_instances);
  check_input(instances >= 1 && topology.dp() % instances == 0, "num_distributed_optimizer_instances = ", instances,
              " does not divide the number of data-parallel ranks, ", topology.dp());
  const int shards = topology.dp() / instances, dp_group = dense.group_index(rank, {Axis::Dp});
  state.dp_shard = groups.split("dp_shard", dp_group * instances + state.me.dp / shards, state.me.dp);
  state.dp_replicate = groups.split("dp_replicate", dp_group * shards + state.me.dp % shards, state.me.dp);

  const std::vector<int> members = topology.embedding_group(rank, output_rank < 0 ? topology.pp() - 1 : output_rank);
  const bool is_member = std::find(members.begin(), members.end(), rank) != members.end();
  auto embedding =
      groups.split("embedding", 2 * dense.group_index(rank, {Axis::Pp}) + (is_member ? 0 : 1), state.me.pp);
  if (is_member) state.embedding = std::move(embedding);
  return state;
}

}  // namespace mcpp
