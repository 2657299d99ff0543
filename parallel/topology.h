// Pure arithmetic between ranks and their coordinates on the axes of parallelism. The axis order is Megatron-LM's
// tp-cp-ep-dp-pp: ranks along tp, which communicate most, are adjacent.
#pragma once
#include <initializer_list>
#include <vector>

#include "nn/placement.h"
#include "parallel/layout.h"

namespace mcpp {

using Axes = std::initializer_list<Axis>;

/// Grid of all ranks with the given sizes, each at least 1.
class Grid {
 public:
  explicit Grid(const AxisValues& sizes);

  const AxisValues& sizes() const { return sizes_; }
  int ranks() const;
  AxisValues coordinates(int rank) const;
  int rank(const AxisValues& coordinates) const;

  /// Returns the ranks that differ from `rank` only along `axes`, in ascending order; group_rank() is its index among
  /// them.
  std::vector<int> group(int rank, Axes axes) const;
  int group_rank(int rank, Axes axes) const;
  /// Returns the index of the rank's group among all groups along `axes`, counted from 0.
  int group_index(int rank, Axes axes) const;

 private:
  /// Returns the coordinates of `rank` along the axes in `axes` (is_inside = false: not in `axes`) as one number.
  int index(int rank, Axes axes, bool is_inside) const;

  AxisValues sizes_;
};

/// Pair of grids over the same ranks: the dense one, where ep is 1, and the expert one, where cp is 1 and tp and dp are
/// the experts' own. Both assign pipeline stages to the same ranks.
class Topology {
 public:
  /// Ignores layout.dp. Throws BadInput if the world is not divisible; layout_conflicts() in parallel/layout_rules.h
  /// reports all conflicts.
  Topology(int world_size, const Layout& layout);

  const Grid& dense() const { return dense_; }
  const Grid& expert() const { return expert_; }
  int tp() const { return dense_.sizes().tp; }
  int cp() const { return dense_.sizes().cp; }
  int dp() const { return dense_.sizes().dp; }
  int pp() const { return dense_.sizes().pp; }

  /// Returns the ranks of this rank's pipeline that hold word embeddings: the first one and the one at pipeline
  /// position `last_holder` (0 in V-shaped schedules; the group then has one rank).
  std::vector<int> embedding_group(int rank, int last_holder) const;

 private:
  Grid dense_, expert_;
};

}  // namespace mcpp
