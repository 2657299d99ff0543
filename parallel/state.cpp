#include "parallel/state.h"

#include <algorithm>
#include <numeric>

#include "parallel/stages.h"

namespace mcpp {
namespace {

/// Creates the process groups. All ranks create all groups in the same order.
class GroupBuilder {
 public:
  GroupBuilder(Communicator& world, ParallelState& state, FlightRecorder* recorder, Profiler* profiler)
      : world_(world), state_(state), recorder_(recorder), profiler_(profiler) {}

  std::unique_ptr<Communicator> make_along(const char* name, const Grid& grid, Axes axes) {
    return make_of_ranks(name, grid.group(world_.rank(), axes));
  }
  /// Creates the group of these ranks, in order, which include this one. Every rank must be in one group of this name.
  std::unique_ptr<Communicator> make_of_ranks(const char* name, std::vector<int> ranks) {
    const int first = ranks.front();
    return ranks.size() == 1 ? make_self_group(name) : make_by_color(name, first, std::move(ranks));
  }
  /// Creates the group of the ranks with this color; `ranks` lists its members in order. Collective over the world.
  std::unique_ptr<Communicator> make_by_color(const char* name, int color, std::vector<int> ranks) {
    return add_metering(name, world_.split(color, world_.rank()), std::move(ranks));
  }
  /// Creates a group of this rank alone, which needs no communication.
  std::unique_ptr<Communicator> make_self_group(const char* name) {
    return add_metering(name, make_self_communicator(), {world_.rank()});
  }

 private:
  std::unique_ptr<Communicator> add_metering(const char* name, std::unique_ptr<Communicator> group,
                                             std::vector<int> ranks) {
    const auto meter = state_.meters[name] = std::make_shared<CommMeter>();
    meter->profiler = profiler_;
    meter->kind = ParallelState::is_pipeline(name) ? RangeKind::Message : RangeKind::Communication;
    meter->group = name;
    meter->ranks = ranks;
    GroupLog log = recorder_ ? GroupLog(*recorder_, name, std::move(ranks)) : GroupLog();
    return make_metered(std::move(group), meter, std::move(log));
  }

  Communicator& world_;
  ParallelState& state_;
  FlightRecorder* recorder_;
  Profiler* profiler_;
};

/// Returns the ranks that exchange messages with `rank` of a pipeline: the last rank's chunks may continue on the
/// first.
std::vector<int> pipeline_neighbors(int rank, int ranks) {
  std::vector<int> result;
  for (const int other : {(rank + ranks - 1) % ranks, (rank + 1) % ranks})
    if (other != rank && (result.empty() || result.front() != other)) result.push_back(other);
  return result;
}

/// Returns `count` elements of `ranks`: those at first, first + step, ...
std::vector<int> strided_ranks(const std::vector<int>& ranks, int first, int step, int count) {
  std::vector<int> chosen;
  for (int i = 0; i < count; ++i) chosen.push_back(ranks[static_cast<std::size_t>(first + i * step)]);
  return chosen;
}

/// Splits the context-parallel ranks into neighborhoods of `heads` ranks that exchange heads, and rings of the ranks
/// with the same index in them.
void make_context_groups(GroupBuilder& groups, int rank, const Grid& dense, int heads, ParallelState& state) {
  const std::vector<int> ranks = dense.group(rank, {Axis::Cp});
  const int own = dense.group_rank(rank, {Axis::Cp}), all = static_cast<int>(ranks.size());
  check_input(heads >= 1 && all % heads == 0, "context_parallel_heads = ", heads,
              " does not divide context_parallel_size = ", all);
  state.cp_heads = groups.make_of_ranks("cp_heads", strided_ranks(ranks, own / heads * heads, 1, heads));
  state.cp_ring = groups.make_of_ranks("cp_ring", strided_ranks(ranks, own % heads, heads, all / heads));
  std::vector<int> others;  // keys go to the successor; gradients return from the last rank that saw the keys
  for (int other = 0; other < state.cp_ring->size(); ++other)
    if (other != state.cp_ring->rank()) others.push_back(other);
  state.cp_ring->connect(others);
  state.tp_cp = all == 1 ? state.tp : groups.make_along("tp_cp", dense, {Axis::Tp, Axis::Cp});
}

/// Ranks among which ZeRO shards, and ranks that hold the same shard.
struct DataParallelRanks {
  std::vector<int> shard, replicas;
};
DataParallelRanks split_instances(const std::vector<int>& holders, int own, i64 instances, const char* names) {
  const int all = static_cast<int>(holders.size()), count = static_cast<int>(instances);
  check_input(count >= 1 && all % count == 0, "num_distributed_optimizer_instances = ", count,
              " does not divide the number of ", names, " ranks, ", all);
  const int shards = all / count, instance = own / shards, part = own % shards;
  return {.shard = strided_ranks(holders, instance * shards, 1, shards),
          .replicas = strided_ranks(holders, part, shards, count)};
}

/// Splits the ZeRO shard group into neighborhoods that hold a second copy of the weights, and groups of ranks with the
/// same index in them.
void make_node_groups(GroupBuilder& groups, const std::vector<int>& shard, int rank, i64 partition,
                      ParallelState& state) {
  if (partition == 1) return;
  const int all = static_cast<int>(shard.size()), neighborhood_size = static_cast<int>(partition);
  check_input(neighborhood_size > 1 && all % neighborhood_size == 0, "zero_hpz_partition_size = ", partition,
              " does not divide the ", all, " ranks that share the weights");
  const int own = static_cast<int>(std::ranges::find(shard, rank) - shard.begin());
  state.dp_node = groups.make_of_ranks(
      "dp_node", strided_ranks(shard, own / neighborhood_size * neighborhood_size, 1, neighborhood_size));
  state.dp_across = groups.make_of_ranks(
      "dp_across", strided_ranks(shard, own % neighborhood_size, neighborhood_size, all / neighborhood_size));
}

/// Returns these ranks and their tensor-parallel neighbors.
std::vector<int> add_tp_neighbors(const Grid& grid, const std::vector<int>& holders) {
  std::vector<int> slices;
  for (const int holder : holders) {
    for (const int slice : grid.group(holder, {Axis::Tp})) slices.push_back(slice);
  }
  return slices;
}

void make_pipeline_groups(GroupBuilder& groups, const Grid& dense, ParallelState& state) {
  state.pp = groups.make_along("pp", dense, {Axis::Pp});
  state.pp_backward = groups.make_along("pp_backward", dense, {Axis::Pp});
  for (Communicator* pipeline : {state.pp.get(), state.pp_backward.get()})
    pipeline->connect(pipeline_neighbors(pipeline->rank(), pipeline->size()));
  state.tp_pp = groups.make_along("model", dense, {Axis::Tp, Axis::Pp});
}

/// Creates the groups that reduce the gradients of dense layers, along ZeRO shards.
void make_shard_groups(GroupBuilder& groups, int rank, const Grid& dense, const Layout& layout, ParallelState& state) {
  const DataParallelRanks ranks =
      split_instances(dense.group(rank, {Axis::Cp, Axis::Dp}), dense.group_rank(rank, {Axis::Cp, Axis::Dp}),
                      layout.instances, "data-parallel x context-parallel");
  state.dp_shard = groups.make_of_ranks("dp_shard", ranks.shard);
  state.dp_replicate = groups.make_of_ranks("dp_replicate", ranks.replicas);
  make_node_groups(groups, ranks.shard, rank, layout.node_ranks, state);
  state.tp_dp_shard = groups.make_of_ranks("tp_dp_shard", add_tp_neighbors(dense, ranks.shard));
}

void make_embedding_group(GroupBuilder& groups, int rank, ParallelState& state) {
  const Topology& topology = state.topology;
  const std::vector<int> members = topology.embedding_group(rank, state.final_norm_rank);
  const bool is_member = std::find(members.begin(), members.end(), rank) != members.end();
  if (topology.pp() == 1) {
    state.embedding = groups.make_self_group("embedding");
  } else {
    // A single split for all ranks; ranks without embeddings discard the result.
    const int pipeline = 2 * topology.dense().group_index(rank, {Axis::Pp});
    auto embedding = groups.make_by_color("embedding", is_member ? pipeline : pipeline + 1, members);
    if (is_member) state.embedding = std::move(embedding);
  }
}

/// Returns the ranks that communicate within a layer, in attention and expert exchange. They are consecutive, because
/// both grids assign a pipeline stage to the same consecutive ranks.
std::vector<int> layer_ranks(int rank, const Grid& dense, const Grid& expert) {
  const AxisValues &d = dense.sizes(), &e = expert.sizes();
  const int layer_size = std::lcm(d.tp * d.cp, e.tp * e.ep);
  std::vector<int> ranks;
  for (int i = 0; i < layer_size; ++i) ranks.push_back(rank / layer_size * layer_size + i);
  return ranks;
}

/// Creates the group of the ranks of the exchange on this rank's node. `nodes` is the node of each rank of the world;
/// empty: one node.
void make_expert_node_group(GroupBuilder& groups, int rank, const Layout& layout, std::span<const int> nodes,
                            ParallelState& state) {
  if (layout.dispatcher != TokenDispatcherType::Hierarchical) return;
  const std::vector<int> ranks = state.topology.expert().group(rank, {Axis::Tp, Axis::Ep});
  std::vector<int> exchange_nodes;
  for (const int other : ranks) {
    const int host = nodes.empty() ? 0 : nodes[static_cast<std::size_t>(other)];
    exchange_nodes.push_back(layout.dispatch_node_ranks > 0 ? other / static_cast<int>(layout.dispatch_node_ranks)
                                                            : host);
  }
  state.exchange_nodes = std::make_shared<ExchangeNodes>(exchange_nodes);
  const int own = static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
  std::vector<int> neighbors;
  for (const int index : state.exchange_nodes->members(state.exchange_nodes->node_of(own)))
    neighbors.push_back(ranks[static_cast<std::size_t>(index)]);
  const int first = neighbors.front();
  // Unlike other groups, these may have different sizes, and all ranks must take part in the split.
  state.expert_node = groups.make_by_color("ep_node", first, std::move(neighbors));
}

void make_expert_groups(GroupBuilder& groups, int rank, const Layout& layout, std::span<const int> nodes,
                        ParallelState& state) {
  const Grid &dense = state.topology.dense(), &expert = state.topology.expert();
  state.expert_exchange = groups.make_along("ep", expert, {Axis::Tp, Axis::Ep});
  make_expert_node_group(groups, rank, layout, nodes, state);
  state.expert_tp_pp = groups.make_along("expert_model", expert, {Axis::Tp, Axis::Ep, Axis::Pp});
  const DataParallelRanks ranks = split_instances(expert.group(rank, {Axis::Dp}), expert.group_rank(rank, {Axis::Dp}),
                                                  layout.instances, "expert-data-parallel");
  state.expert_tp = groups.make_along("expert_tp", expert, {Axis::Tp});
  state.expert_dp = groups.make_along("expert_dp", expert, {Axis::Dp});
  state.expert_dp_shard = groups.make_of_ranks("expert_dp_shard", ranks.shard);
  state.expert_dp_replicate = groups.make_of_ranks("expert_dp_replicate", ranks.replicas);
  state.expert_tp_dp_shard = groups.make_of_ranks("expert_tp_dp_shard", add_tp_neighbors(expert, ranks.shard));
  std::vector<int> layer = layer_ranks(rank, dense, expert);
  if (static_cast<int>(layer.size()) > state.tp_cp->size())
    state.layer_group = groups.make_of_ranks("layer", std::move(layer));
}

}  // namespace

std::vector<NamedGroup> ParallelState::groups() const {
  using enum CollectiveUse;
  // Skips groups that are the same object as one listed before.
  const auto unless_same = [](const auto& group, const auto& other) { return group == other ? nullptr : group.get(); };
  std::vector<NamedGroup> all{
      {"world", &world, Serialized},
      {"tp", tp.get(), Overlapped},
      {"cp_heads", cp_heads.get(), Serialized},
      {"cp_ring", cp_ring.get(), Serialized},
      {"tp_cp", unless_same(tp_cp, tp), Serialized},
      {"layer", unless_same(layer_group, tp_cp), Serialized},
      {"dp", dp.get(), dp == dp_cp ? Serialized : None},
      {"dp_cp", unless_same(dp_cp, dp), Serialized},
      {"dp_shard", dp_shard.get(), Overlapped},
      {"dp_replicate", dp_replicate.get(), Serialized},
      {"dp_node", dp_node.get(), Overlapped},
      {"dp_across", dp_across.get(), Serialized},
      {"tp_dp_shard", tp_dp_shard.get(), None},
      {"ep", expert_exchange.get(), layout.overlap_moe_expert_parallel_comm ? Overlapped : Serialized},
      {"ep_node", expert_node.get(), layout.overlap_moe_expert_parallel_comm ? Overlapped : Serialized},
      {"expert_tp", expert_tp.get(), None},
      {"expert_dp", expert_dp.get(), None},
      {"expert_dp_shard", expert_dp_shard.get(), Overlapped},
      {"expert_dp_replicate", expert_dp_replicate.get(), Serialized},
      {"expert_tp_dp_shard", expert_tp_dp_shard.get(), None},
      {"expert_model", expert_tp_pp.get(), Serialized},
      {"pp", pp.get(), Serialized},
      {"pp_backward", pp_backward.get(), None},
      {"model", tp_pp.get(), Serialized},
      {"embedding", embedding.get(), Serialized}};
  std::erase_if(all, [](const NamedGroup& named) { return !named.group; });
  return all;
}

ContextParallel ParallelState::context_parallel() const {
  return {.comm_type = layout.cp_comm_type,
          .partition = {.heads = cp_heads->size(), .rings = cp_ring->size()},
          .rank = coordinates.cp,
          .heads = cp_heads.get(),
          .ring = cp_ring.get()};
}

ExpertParallel ParallelState::expert_parallel() const {
  if (!expert_exchange) return {};
  const AxisValues& sizes = topology.expert().sizes();
  return {.dispatcher = layout.dispatcher,
          .ep = sizes.ep,
          .ep_rank = expert_coordinates.ep,
          .tp = sizes.tp,
          .tp_rank = expert_coordinates.tp,
          .exchange = expert_exchange.get(),
          .nodes = exchange_nodes,
          .node_exchange = expert_node.get(),
          .sample = tp_cp.get()};
}

ParallelState make_parallel_state(Communicator& world, const Layout& layout, bool has_experts, FlightRecorder* recorder,
                                  Profiler* profiler, std::span<const int> nodes) {
  const Topology topology(world.size(), layout);
  const int rank = world.rank();
  const Grid& dense = topology.dense();
  ParallelState state{.layout = layout,
                      .topology = topology,
                      .coordinates = dense.coordinates(rank),
                      .expert_coordinates = topology.expert().coordinates(rank),
                      .output_rank = layout.output_rank(),
                      .final_norm_rank = final_norm_rank(layout),
                      .world = world};
  state.layout.dp = topology.dp();
  GroupBuilder groups(world, state, recorder, profiler);
  state.tp = groups.make_along("tp", dense, {Axis::Tp});
  make_context_groups(groups, rank, dense, static_cast<int>(layout.cp_heads()), state);
  state.dp = groups.make_along("dp", dense, {Axis::Dp});
  state.dp_cp = topology.cp() == 1 ? state.dp : groups.make_along("dp_cp", dense, {Axis::Cp, Axis::Dp});
  make_pipeline_groups(groups, dense, state);
  make_shard_groups(groups, rank, dense, layout, state);
  state.layer_group = state.tp_cp;
  if (has_experts) make_expert_groups(groups, rank, layout, nodes, state);
  make_embedding_group(groups, rank, state);
  return state;
}

DataParallelGroups ParallelState::gradient_groups(GridKind grid) const {
  if (grid == GridKind::Dense) return {*dp_shard, *dp_replicate, dp_node.get(), dp_across.get(), tp.get()};
  MCPP_CHECK(expert_dp_shard, "the groups were made for a model without experts");
  return {*expert_dp_shard, *expert_dp_replicate};
}

}  // namespace mcpp
