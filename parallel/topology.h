// Pure arithmetic between ranks and their coordinates on the axes of parallelism. The axis order is Megatron-LM's
// tp-cp-ep-dp-pp: ranks along tp, which communicate most, are adjacent.
#pragma once
#include <initializer_list>
#include <vector>

#include "nn/placement.h"

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
  /// Returns the index 0, 1, ... of the rank's group, which is distinct among the groups over these axes.
  int group_index(int rank, Axes axes) const;

 private:
  /// Returns the coordinates of `rank` along the axes in `axes` (is_inside = false: not in `axes`) as one number.
  int index(int rank, Axes axes, bool is_inside) const;

  AxisValues sizes_;
};

/// Degrees of parallelism. Names are Megatron-LM's options.
struct ParallelSizes {
  i64 tensor_model_parallel_size = 1;
  i64 pipeline_model_parallel_size = 1;
  i64 context_parallel_size = 1;
  i64 context_parallel_heads = 1;  ///< neighbors that exchange heads (SequencePartition::heads)
  bool has_experts = false;        ///< groups of the expert grid are created
  i64 expert_model_parallel_size = 1;
  i64 expert_tensor_parallel_size = 1;
  /// Groups of neighboring data-parallel ranks that each hold a complete copy of the weights and states (HSDP).
  i64 num_distributed_optimizer_instances = 1;
  /// Number of consecutive ranks of an instance that hold secondary weight shards, or sum encoded gradients first; 1
  /// disables both.
  i64 zero_hpz_partition_size = 1;

  /// Return the number of ranks of the dense grid that share one sample, and of the expert grid that hold one copy of
  /// the experts.
  i64 ranks_per_sample() const {
    return tensor_model_parallel_size * context_parallel_size * pipeline_model_parallel_size;
  }
  i64 ranks_per_expert_copy() const {
    return expert_tensor_parallel_size * expert_model_parallel_size * pipeline_model_parallel_size;
  }
  /// Return the data-parallel size of each grid, rounded down if the world is not divisible.
  i64 data_parallel_size(i64 world_size) const { return world_size / ranks_per_sample(); }
  i64 expert_data_parallel_size(i64 world_size) const { return world_size / ranks_per_expert_copy(); }
};

/// Pair of grids over the same ranks: the dense one, where ep is 1, and the expert one, where cp is 1 and tp and dp are
/// the experts' own. Both assign pipeline stages to the same ranks.
class Topology {
 public:
  /// Throws BadInput if the world is not divisible; layout_conflicts() in parallel/layout.h reports all
  /// conflicts.
  Topology(int world_size, const ParallelSizes& sizes);

  const Grid& dense() const { return dense_; }
  const Grid& expert() const { return expert_; }
  int tp() const { return dense_.sizes().tp; }
  int cp() const { return dense_.sizes().cp; }
  int dp() const { return dense_.sizes().dp; }
  int pp() const { return dense_.sizes().pp; }

  /// Returns the ranks of this rank's pipeline that hold word embeddings: the first stage and the one with the output
  /// layer, which is at pipeline position `output_rank` (0 in V-shaped schedules; the group then has one rank).
  std::vector<int> embedding_group(int rank, int output_rank) const;

 private:
  Grid dense_, expert_;
};

}  // namespace mcpp
