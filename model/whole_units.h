// Which units of a chunk are whole at the same time where ZeRO cuts gradients (stage 2) or weights too (stage 3): as
// ShardedParams and ShardedGrads (parallel/dp) make and drop them.
#pragma once
#include "model/layer_memory.h"

namespace mcpp {

/// Bytes.
struct WholeBytes {
  double params = 0, grads = 0;
};

/// Units [first, end), which a pass uses at the same time.
struct UnitRange {
  int first = 0, end = 0;
};

class WholeUnits {
 public:
  /// `keeps_embedding`: the output layer uses the weight of this chunk's word embeddings, which are then whole during
  /// all of the backward pass. `dense` and `experts` live as long.
  WholeUnits(const ChunkParameters& dense, const ChunkParameters* experts, const RankShare& share, DType dtype,
             bool keeps_embedding);

  WholeBytes in_forward(UnitRange used) const;
  WholeBytes in_backward(UnitRange used) const;

 private:
  double params_forward(const ChunkParameters& chunk, UnitRange used) const;
  double params_backward(const ChunkParameters& chunk, UnitRange used) const;
  double grads_backward(const ChunkParameters& chunk, UnitRange used) const;
  /// Tied embeddings are counted by themselves.
  bool is_kept(const ChunkParameters& chunk, std::size_t bucket) const;
  double bytes(const ChunkParameters& chunk, std::size_t bucket, i64 width) const;
  /// Of weights on their way; where these are packed, and else as many as of weights that arrived.
  double message(const ChunkParameters& chunk, std::size_t bucket) const;
  /// What the last of so many buckets takes more, as it is unpacked.
  double unpacked(const ChunkParameters& chunk, std::size_t end) const;

  std::vector<const ChunkParameters*> grids_;  // dense first
  i64 param_width_, grad_width_;               // 0 = not cut
  bool overlaps_gather_, overlaps_reduce_, keeps_embedding_;
  bool repeats_;    // a step has several microbatches
  bool is_packed_;  // what weights are gathered in
};

/// The ranges of units that a pass over a stage uses, first to last, with the layers of each; none for the embedding
/// and the output.
struct UsedUnits {
  UnitRange units;
  bool is_embedding = false, is_output = false;
  i64 first_layer = 0, layers = 0;
  bool is_recomputed = false;
};
std::vector<UsedUnits> used_units(const Recompute& recompute, const StageContents& stage);

/// Bytes of activations while backward of the only microbatch in flight is in such a range.
struct UnitActivations {
  i64 below = 0;  ///< kept by the ranges before it, whose backward is still to come
  i64 here = 0;   ///< kept by its own layers, and their working set
};
std::vector<UnitActivations> unit_activations(LayerSizes& sizes, const std::vector<UsedUnits>& used);

/// What is whole at most in both passes, each class for itself.
WholeBytes most_whole(const std::vector<UsedUnits>& used, const WholeUnits& whole);

/// Elements of the largest bucket of each grid.
i64 largest_buckets(const RankParameters& parameters);

}  // namespace mcpp
