// Units of a chunk that are unsharded at the same time if ZeRO shards gradients (stage 2) or also weights (stage 3).
// Follows the allocations of ShardedParams and ShardedGrads (parallel/dp).
#pragma once
#include "model/layer_memory.h"

namespace mcpp {

/// Bytes of unsharded units.
struct UnshardedBytes {
  double params = 0, grads = 0;
};

/// Units [first, end) that a pass uses at the same time.
struct UnitRange {
  int first = 0, end = 0;
};

class UnshardedUnits {
 public:
  /// `keeps_embedding`: the output layer uses the weight of this chunk's word embeddings, which stay unsharded during
  /// all of the backward pass. Keeps references to `dense` and `experts`.
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
  /// Returns the bytes of weights in flight: packed size if they are packed, otherwise the full size.
  double message_bytes(const ChunkParameters& chunk, std::size_t bucket) const;
  /// Returns the additional bytes of the bucket before `end` while it is unpacked.
  double unpack_bytes(const ChunkParameters& chunk, std::size_t end) const;

  std::vector<const ChunkParameters*> grids_;  // parameters of each grid, the dense grid first
  i64 param_width_, grad_width_;               // shard width; 0 = not sharded
  bool overlaps_gather_, overlaps_reduce_, keeps_embedding_;
  bool has_several_microbatches_;  // a step has several microbatches
  bool is_packed_;                 // format in which weights are gathered
};

/// Units that a pass over a stage uses at the same time, from first to last, with their layers; the embedding and the
/// output have no layers.
struct UsedUnits {
  UnitRange units;
  bool is_embedding = false, is_output = false;
  i64 first_layer = 0, layers = 0;
  bool is_recomputed = false;
};
std::vector<UsedUnits> used_units(const ModelConfig& config, const Recompute& recompute, const StageContents& stage);

/// Bytes of activations while backward of the only microbatch in flight is in a range of units.
struct UnitActivations {
  i64 saved_earlier = 0;  ///< bytes saved by earlier ranges, whose backward pass has not run yet
  i64 live = 0;           ///< bytes saved by the layers of this range, and their working set
};
std::vector<UnitActivations> unit_activation_bytes(LayerSizes& sizes, const std::vector<UsedUnits>& used);

/// Returns the peak over both passes, separately for each class.
UnshardedBytes max_unsharded_bytes(const std::vector<UsedUnits>& used, const UnshardedUnits& units);

/// Returns the sum over grids of the elements of the largest bucket.
i64 largest_buckets(const RankParameters& parameters);

/// Memory of gradient messages in reduced precision (parallel/dp/store.h) over time.
class GradientMessages {
 public:
  /// Keeps references to `share` and `parameters`.
  GradientMessages(const ActivationSetup& setup, const RankMemorySpec& share, const RankParameters& parameters)
      : setup_(setup), share_(share), parameters_(parameters) {}

  /// Returns the peak in bytes: the largest message as sent and received, and with ZeRO 1 also the previous bucket's.
  double max_bytes() const;
  /// ZeRO 1 with messages: returns the peak of messages and activations together, for the rank's first chunk with these
  /// units. A bucket's messages exist from the end of backward of its units to the end of backward of the next
  /// bucket's.
  double peak_bytes_with(const std::vector<UsedUnits>& used, const std::vector<UnitActivations>& activations) const;

 private:
  bool has_node_groups() const { return share_.layout.node_ranks > 1; }
  double bytes(i64 elements) const;
  /// Return the bytes for a bucket of `elements` until its reduction starts, and while it is in flight.
  double packing_bytes(i64 elements) const;
  double in_flight_bytes(i64 elements) const;

  ActivationSetup setup_;
  const RankMemorySpec& share_;
  const RankParameters& parameters_;
};

}  // namespace mcpp
