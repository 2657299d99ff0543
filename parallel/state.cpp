#include "parallel/state.h"

#include <algorithm>

namespace mcpp {

ParallelState make_parallel_state(Communicator& world, const ParallelSizes& sizes, int last) {
  const Topology topology(world.size(), sizes);
  const int rank = world.rank();
  const Grid &dense = topology.dense(), &expert = topology.expert();
  const auto group = [&](const Grid& grid, Axes axes) {
    return world.split(grid.group_index(rank, axes), grid.group_rank(rank, axes));
  };
  ParallelState state{
      topology, dense.coordinates(rank), expert.coordinates(rank), world, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}};
  // All ranks make all groups, in this order.
  state.tp = group(dense, {Axis::Tp});
  state.cp = group(dense, {Axis::Cp});
  state.dp = group(dense, {Axis::Dp});
  state.dp_cp = group(dense, {Axis::Dp, Axis::Cp});
  state.pp = group(dense, {Axis::Pp});
  state.model = group(dense, {Axis::Tp, Axis::Pp});
  state.ep = group(expert, {Axis::Ep});
  state.expert_tp = group(expert, {Axis::Tp});
  state.expert_dp = group(expert, {Axis::Dp});

  const std::vector<int> members = topology.embedding_group(rank, last < 0 ? topology.pp() - 1 : last);
  const bool is_member = std::find(members.begin(), members.end(), rank) != members.end();
  auto embedding = world.split(2 * dense.group_index(rank, {Axis::Pp}) + (is_member ? 0 : 1), state.me.pp);
  if (is_member) state.embedding = std::move(embedding);
  return state;
}

}  // namespace mcpp
