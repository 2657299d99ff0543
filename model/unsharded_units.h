// Memory of the units of a chunk that are unsharded at the same time with ZeRO stage 2 (gradients) or 3 (gradients and
// weights). Models the allocations of ShardedParams and ShardedGrads (parallel/dp).
#pragma once
#include "model/layer_memory.h"

namespace mcpp {

/// Bytes of units that are unsharded at the same time.
struct UnshardedBytes {
  double params = 0, grads = 0;
};

/// Units [first, end) that a pass uses at the same time.
struct UnitRange {
  int first = 0, end = 0;
};

class UnshardedUnits {
 public:
  /// `keeps_embedding`: the output layer uses the word embeddings of this chunk, which remain unsharded during the
  /// entire backward pass. Keeps references to `dense` and `experts`.
  UnshardedUnits(const ChunkParameters& dense, const ChunkParameters* experts, const RankMemorySpec& share, DType dtype,
                 bool keeps_embedding);

  UnshardedBytes forward_bytes(UnitRange used) const;
  UnshardedBytes backward_bytes(UnitRange used) const;

 private:
  double params_forward(const ChunkParameters& chunk, UnitRange used) const;
  double params_backward(const ChunkParameters& chunk, UnitRange used) const;
  double grads_backward(const ChunkParameters& chunk, UnitRange used) const;
  /// Returns true for tied embeddings, which are counted separately.
  bool is_kept(const ChunkParameters& chunk, std::size_t bucket) const;
  double bytes(const ChunkParameters& chunk, std::size_t bucket, i64 width) const;
  /// Returns the bytes of a weight message: the packed size if weights are gathered in packed form, otherwise the full
  /// size.
  double message_bytes(const ChunkParameters& chunk, std::size_t bucket) const;
  /// Returns the additional bytes while the bucket before `end` is being unpacked.
  double unpack_bytes(const ChunkParameters& chunk, std::size_t end) const;

  std::vector<const ChunkParameters*> grids_;  // parameters of each grid, the dense grid first
  i64 param_width_, grad_width_;               // bytes per unsharded element; 0: not sharded by ZeRO
  bool overlaps_gather_, overlaps_reduce_, keeps_embedding_;
  bool has_several_microbatches_;  // a step consists of several microbatches
  WeightEncoding format_;          // encoding of gathered weights
};

/// Units that a pass over a stage uses at the same time, from first to last, and their layers. The embedding and the
/// output have no layers.
struct UsedUnits {
  UnitRange units;
  bool is_embedding = false;
  bool is_output = false;  ///< the output part (StageContents::output_part())
  i64 first_layer = 0, layers = 0;
  bool is_recomputed = false;
};
std::vector<UsedUnits> used_units(const ModelConfig& config, const Recompute& recompute, const StageContents& stage);

/// Bytes of activations while backward of the only microbatch in flight is in a range of units.
struct UnitActivations {
  i64 saved_earlier = 0;  ///< bytes saved by earlier ranges, whose backward pass has not run yet
  i64 live = 0;           ///< bytes saved by the layers of this range, and their working set
};
std::vector<UnitActivations> unit_activation_bytes(LayerSizes& sizes, const StageContents& stage,
                                                   const std::vector<UsedUnits>& used);

/// Returns the peak over forward and backward, separately for each class.
UnshardedBytes max_unsharded_bytes(const std::vector<UsedUnits>& used, const UnshardedUnits& units);

/// Returns the sum over grids of the elements of the largest bucket.
i64 largest_buckets(const RankParameters& parameters);

/// Memory of gradient messages in reduced precision (parallel/dp/store.h) over time.
class GradientMessages {
 public:
  /// Keeps references to `share` and `parameters`.
  GradientMessages(const ActivationSetup& setup, const RankMemorySpec& share, const RankParameters& parameters)
      : setup_(setup), share_(share), parameters_(parameters) {}

  /// Returns the peak in bytes: the largest message as sent and received and, with ZeRO 1, also the message of the
  /// previous bucket.
  double max_bytes() const;
  /// Returns the peak of messages and activations together with ZeRO 1, for the rank's first chunk with these units.
  /// The messages of a bucket exist from the end of backward of its units to the end of backward of the next bucket's
  /// units.
  double peak_bytes_with(const std::vector<UsedUnits>& used, const std::vector<UnitActivations>& activations) const;

 private:
  bool has_node_groups() const { return share_.layout.node_ranks > 1; }
  double bytes(i64 elements) const;
  /// Returns the bytes for a bucket of `elements` until its reduction starts.
  double packing_bytes(i64 elements) const;
  /// Returns the bytes for a bucket of `elements` while its reduction is in flight.
  double in_flight_bytes(i64 elements) const;

  ActivationSetup setup_;
  const RankMemorySpec& share_;
  const RankParameters& parameters_;
};

}  // namespace mcpp
