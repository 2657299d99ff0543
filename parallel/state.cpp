#include "parallel/state.h"

#include <algorithm>

namespace mcpp {
namespace {

/// Splits the world into groups; all ranks make all groups, in the same order.
class GroupMaker {
 public:
  GroupMaker(Communicator& world, ParallelState& state, FlightRecorder* recorder)
      : world_(world), state_(state), recorder_(recorder) {}

  std::unique_ptr<Communicator> over(const char* name, const Grid& grid, Axes axes) {
    return of(name, grid.group(world_.rank(), axes));
  }
  /// The group of these ranks, in order, among which this one is; every rank is in one group of the name.
  std::unique_ptr<Communicator> of(const char* name, std::vector<int> ranks) {
    const int first = ranks.front();
    return ranks.size() == 1 ? alone(name) : split(name, first, std::move(ranks));
  }
  /// ranks: the members of this rank's group, in order, where groups of one color are one group. Every rank calls this.
  std::unique_ptr<Communicator> split(const char* name, int color, std::vector<int> ranks) {
    return noted(name, world_.split(color, world_.rank()), std::move(ranks));
  }
  /// Where every rank has a group of its own, nobody has to be asked.
  std::unique_ptr<Communicator> alone(const char* name) {
    return noted(name, make_self_communicator(), {world_.rank()});
  }

 private:
  std::unique_ptr<Communicator> noted(const char* name, std::unique_ptr<Communicator> group, std::vector<int> ranks) {
    const auto meter = state_.meters[name] = std::make_shared<CommMeter>();
    GroupLog log = recorder_ ? GroupLog(*recorder_, name, std::move(ranks)) : GroupLog();
    return make_metered(std::move(group), meter, std::move(log));
  }

  Communicator& world_;
  ParallelState& state_;
  FlightRecorder* recorder_;
};

/// Those that a rank of a pipeline exchanges messages with: the chunks of the last rank may continue on the first.
std::vector<int> neighbours(int rank, int ranks) {
  std::vector<int> result;
  for (const int other : {(rank + ranks - 1) % ranks, (rank + 1) % ranks})
    if (other != rank && (result.empty() || result.front() != other)) result.push_back(other);
  return result;
}

/// Ranks number first, first + step, ... of `ranks`, `count` of them.
std::vector<int> every(const std::vector<int>& ranks, int first, int step, int count) {
  std::vector<int> chosen;
  for (int i = 0; i < count; ++i) chosen.push_back(ranks[static_cast<std::size_t>(first + i * step)]);
  return chosen;
}

/// Of this rank's context-parallel ranks, `heads` neighbours exchange heads; those at the same place of all such
/// neighbourhoods are a ring.
void make_context_groups(GroupMaker& groups, int rank, const Grid& dense, int heads, ParallelState& state) {
  const std::vector<int> ranks = dense.group(rank, {Axis::Cp});
  const int own = dense.group_rank(rank, {Axis::Cp}), all = static_cast<int>(ranks.size());
  check_input(heads >= 1 && all % heads == 0, "context_parallel_heads = ", heads,
              " does not divide context_parallel_size = ", all);
  state.cp_heads = groups.of("cp_heads", every(ranks, own / heads * heads, 1, heads));
  state.cp_ring = groups.of("cp_ring", every(ranks, own % heads, heads, all / heads));
  std::vector<int> others;  // keys go to the neighbour, their gradient comes home from wherever they were seen last
  for (int other = 0; other < state.cp_ring->size(); ++other)
    if (other != state.cp_ring->rank()) others.push_back(other);
  state.cp_ring->connect(others);
  state.tp_cp = all == 1 ? state.tp : groups.over("tp_cp", dense, {Axis::Tp, Axis::Cp});
}

}  // namespace

ContextParallel ParallelState::context_parallel(CpCommType comm_type) const {
  return {.comm_type = comm_type,
          .cut = {.heads = cp_heads->size(), .rings = cp_ring->size()},
          .rank = me.cp,
          .heads = cp_heads.get(),
          .ring = cp_ring.get()};
}

ParallelState make_parallel_state(Communicator& world, const ParallelSizes& sizes, int output_rank,
                                  FlightRecorder* recorder) {
  const Topology topology(world.size(), sizes);
  const int rank = world.rank();
  const Grid &dense = topology.dense(), &expert = topology.expert();
  ParallelState state{.topology = topology,
                      .me = dense.coordinates(rank),
                      .expert_me = expert.coordinates(rank),
                      .output_rank = output_rank < 0 ? topology.pp() - 1 : output_rank,
                      .world = world,
                      .tp = {},
                      .cp_heads = {},
                      .cp_ring = {},
                      .tp_cp = {},
                      .data = {},
                      .data_context = {},
                      .dp_shard = {},
                      .dp_replicate = {},
                      .tp_dp_shard = {},
                      .pp = {},
                      .pp_backward = {},
                      .model = {},
                      .embedding = {},
                      .meters = {}};
  GroupMaker groups(world, state, recorder);
  state.tp = groups.over("tp", dense, {Axis::Tp});
  make_context_groups(groups, rank, dense, static_cast<int>(sizes.context_parallel_heads), state);
  state.data = groups.over("dp", dense, {Axis::Dp});
  state.data_context = topology.cp() == 1 ? state.data : groups.over("dp_cp", dense, {Axis::Cp, Axis::Dp});
  state.pp = groups.over("pp", dense, {Axis::Pp});
  state.pp_backward = groups.over("pp_backward", dense, {Axis::Pp});
  for (Communicator* pipeline : {state.pp.get(), state.pp_backward.get()})
    pipeline->connect(neighbours(pipeline->rank(), pipeline->size()));
  state.model = groups.over("model", dense, {Axis::Tp, Axis::Pp});

  const std::vector<int> holders = dense.group(rank, {Axis::Cp, Axis::Dp});
  const int instances = static_cast<int>(sizes.num_distributed_optimizer_instances);
  const int all = static_cast<int>(holders.size()), own = dense.group_rank(rank, {Axis::Cp, Axis::Dp});
  check_input(instances >= 1 && all % instances == 0, "num_distributed_optimizer_instances = ", instances,
              " does not divide the number of data-parallel x context-parallel ranks, ", all);
  const int shards = all / instances, instance = own / shards, part = own % shards;
  const std::vector<int> shard = every(holders, instance * shards, 1, shards),
                         replicas = every(holders, part, shards, instances);
  state.dp_shard = groups.of("dp_shard", shard);
  state.dp_replicate = groups.of("dp_replicate", replicas);
  std::vector<int> slices;
  for (const int holder : shard) {
    for (const int slice : dense.group(holder, {Axis::Tp})) slices.push_back(slice);
  }
  state.tp_dp_shard = groups.of("tp_dp_shard", slices);

  const std::vector<int> members = topology.embedding_group(rank, state.output_rank);
  const bool is_member = std::find(members.begin(), members.end(), rank) != members.end();
  if (topology.pp() == 1) {
    state.embedding = groups.alone("embedding");
  } else {
    // One split for all, of which the ranks without embeddings drop theirs.
    const int pipeline = 2 * dense.group_index(rank, {Axis::Pp});
    auto embedding = groups.split("embedding", is_member ? pipeline : pipeline + 1, members);
    if (is_member) state.embedding = std::move(embedding);
  }
  return state;
}

DataParallelGroups ParallelState::gradient_groups(GridKind grid) const {
  MCPP_CHECK(grid == GridKind::Dense, "there are no groups for parameters of experts");
  return {*dp_shard, *dp_replicate};
}

}  // namespace mcpp
