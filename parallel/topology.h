// Which rank does what: pure arithmetic between ranks and their coordinates on the axes of parallelism. The order of
// axes is Megatron-LM's tp-cp-ep-dp-pp, neighbours in tp being neighbouring ranks, as they exchange the most.
#pragma once
#include <initializer_list>
#include <vector>

#include "nn/placement.h"

namespace mcpp {

using Axes = std::initializer_list<Axis>;

/// All ranks as a grid of the given sizes, which are at least 1.
class Grid {
 public:
  explicit Grid(const AxisValues& sizes);

  const AxisValues& sizes() const { return sizes_; }
  int ranks() const;
  AxisValues coordinates(int rank) const;
  int rank(const AxisValues& coordinates) const;

  /// The ranks that differ from `rank` only on `axes`, in rising order. Its own place among them is group_rank().
  std::vector<int> group(int rank, Axes axes) const;
  int group_rank(int rank, Axes axes) const;
  /// A number for the group, 0, 1, ...: the same for its members and different for other groups over these axes.
  int group_index(int rank, Axes axes) const;

 private:
  /// The coordinates of `rank` on the axes that are in `axes` (with inside = false: that are not) as one number.
  int index(int rank, Axes axes, bool inside) const;

  AxisValues sizes_;
};

/// How many ways each kind of parallelism splits. Names are Megatron-LM's options.
struct ParallelSizes {
  i64 tensor_model_parallel_size = 1;
  i64 pipeline_model_parallel_size = 1;
  i64 context_parallel_size = 1;
  i64 context_parallel_heads = 1;  ///< of these, neighbours that exchange heads (SequenceCut::heads)
  bool has_experts = false;        ///< without, nobody makes groups of the expert grid
  i64 expert_model_parallel_size = 1;
  i64 expert_tensor_parallel_size = 1;
  /// Groups of neighbouring data-parallel ranks that each hold everything.
  i64 num_distributed_optimizer_instances = 1;
  /// Of such a group, neighbours that hold a second copy of the weights, or sum packed gradients first; 1: neither.
  i64 zero_hpz_partition_size = 1;

  /// Ranks of the dense grid that share one sample, and of the expert grid that hold one copy of the experts.
  i64 ranks_of_a_sample() const {
    return tensor_model_parallel_size * context_parallel_size * pipeline_model_parallel_size;
  }
  i64 ranks_of_the_experts() const {
    return expert_tensor_parallel_size * expert_model_parallel_size * pipeline_model_parallel_size;
  }
  /// The data-parallel ranks that are left in a world, of each grid; rounded down where it does not divide.
  i64 data_parallel_size(i64 world_size) const { return world_size / ranks_of_a_sample(); }
  i64 expert_data_parallel_size(i64 world_size) const { return world_size / ranks_of_the_experts(); }
};

/// The grid of the dense layers, where ep is 1, and that of the experts, where cp is 1 and tp and dp are the experts'
/// own. Both place pipeline stages on the same ranks.
class Topology {
 public:
  /// Throws BadInput when the world does not divide; layout_conflicts() in parallel/layout.h tells all reasons at once.
  Topology(int world_size, const ParallelSizes& sizes);

  const Grid& dense() const { return dense_; }
  const Grid& expert() const { return expert_; }
  int tp() const { return dense_.sizes().tp; }
  int cp() const { return dense_.sizes().cp; }
  int dp() const { return dense_.sizes().dp; }
  int pp() const { return dense_.sizes().pp; }

  /// The ranks of this rank's pipeline that hold the word embeddings: the first stage and the one with the output
  /// layer, which is at position `output_rank` of the pipeline (0 in V-shaped schedules; then there is one rank only).
  std::vector<int> embedding_group(int rank, int output_rank) const;
  /// The rank of this rank's pipeline that holds the position embeddings.
  std::vector<int> position_embedding_group(int rank) const;

 private:
  Grid dense_, expert_;
};

}  // namespace mcpp
