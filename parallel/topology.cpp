#include "parallel/topology.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace mcpp {
namespace {

constexpr std::array<Axis, kAxes> kOrder{Axis::Tp, Axis::Cp, Axis::Ep, Axis::Dp, Axis::Pp};

bool contains(Axes axes, Axis axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

void check_divides(i64 parts, int world, const char* names) {
  check_input(parts >= 1 && world % parts == 0, "the world of ", world, " ranks is not divisible by ", names, " = ",
              parts);
}

AxisValues dense_sizes(int world, const Layout& layout) {
  check_divides(layout.ranks_per_sample(), world,
                "tensor_model_parallel_size x context_parallel_size x pipeline_model_parallel_size");
  return {.tp = static_cast<int>(layout.tp),
          .cp = static_cast<int>(layout.cp),
          .dp = static_cast<int>(world / layout.ranks_per_sample()),
          .pp = static_cast<int>(layout.pp)};
}

AxisValues expert_sizes(int world, const Layout& layout) {
  const i64 ranks_per_copy = layout.expert_tp() * layout.ep * layout.pp;
  check_divides(ranks_per_copy, world,
                "expert_tensor_parallel_size x expert_model_parallel_size x pipeline_model_parallel_size");
  return {.tp = static_cast<int>(layout.expert_tp()),
          .ep = static_cast<int>(layout.ep),
          .dp = static_cast<int>(world / ranks_per_copy),
          .pp = static_cast<int>(layout.pp)};
}

}  // namespace

Grid::Grid(const AxisValues& sizes) : sizes_(sizes) {
  for (const Axis axis : kOrder) MCPP_CHECK(sizes[axis] >= 1, "axis ", static_cast<int>(axis), " is empty");
}

int Grid::ranks() const {
  int product = 1;
  for (const Axis axis : kOrder) product *= sizes_[axis];
  return product;
}

AxisValues Grid::coordinates(int rank) const {
  MCPP_CHECK(rank >= 0 && rank < ranks(), "rank ", rank, " of ", ranks());
  const auto take = [&rank](int size) {
    const int value = rank % size;
    rank /= size;
    return value;
  };
  AxisValues at;
  at.tp = take(sizes_.tp);
  at.cp = take(sizes_.cp);
  at.ep = take(sizes_.ep);
  at.dp = take(sizes_.dp);
  at.pp = rank;
  return at;
}

int Grid::rank(const AxisValues& at) const {
  int rank = 0;
  for (auto axis = kOrder.rbegin(); axis != kOrder.rend(); ++axis) {
    MCPP_CHECK(at[*axis] >= 0 && at[*axis] < sizes_[*axis], "coordinate ", at[*axis], " of ", sizes_[*axis]);
    rank = rank * sizes_[*axis] + at[*axis];
  }
  return rank;
}

std::vector<int> Grid::group(int rank, Axes axes) const {
  // Starts at the first member and appends axis by axis, which yields ascending ranks.
  const AxisValues at = coordinates(rank);
  std::vector<int> members{rank};
  int stride = 1;
  for (const Axis axis : kOrder) {
    if (contains(axes, axis)) {
      for (int& member : members) member -= at[axis] * stride;
      const std::vector<int> first = members;
      for (int i = 1; i < sizes_[axis]; ++i)
        for (const int member : first) members.push_back(member + i * stride);
    }
    stride *= sizes_[axis];
  }
  return members;
}

int Grid::index(int rank, Axes axes, bool is_inside) const {
  const AxisValues at = coordinates(rank);
  int index = 0, stride = 1;
  for (const Axis axis : kOrder) {
    if (contains(axes, axis) != is_inside) continue;
    index += at[axis] * stride;
    stride *= sizes_[axis];
  }
  return index;
}

int Grid::group_rank(int rank, Axes axes) const {
  return index(rank, axes, true);
}

int Grid::group_index(int rank, Axes axes) const {
  return index(rank, axes, false);
}

Topology::Topology(int world_size, const Layout& layout)
    : dense_(dense_sizes(world_size, layout)), expert_(expert_sizes(world_size, layout)) {}

std::vector<int> Topology::embedding_group(int rank, int last_holder) const {
  const std::vector<int> pipeline = dense_.group(rank, {Axis::Pp});
  MCPP_CHECK(last_holder >= 0 && last_holder < pp(), "rank ", last_holder, " is not in a pipeline of ", pp(), " ranks");
  if (last_holder == 0) return {pipeline.front()};
  return {pipeline.front(), pipeline[static_cast<std::size_t>(last_holder)]};
}

}  // namespace mcpp
