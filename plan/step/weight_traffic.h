// Data-parallel communication of weights and gradients, and its time.
#pragma once
#include <vector>

#include "plan/step/weight_counts.h"

namespace mcpp {

/// Time of a transfer: seconds over links, which may overlap with other work, and seconds on the device to pack, unpack
/// and add.
struct Transfer {
  double links = 0, device = 0;

  double total() const { return links + device; }
  Transfer& operator+=(const Transfer& other);
  Transfer operator*(double factor) const { return {factor * links, factor * device}; }
};

/// Communication of ZeRO 2 and 3 for a unit (embedding, layer or output) in each microbatch.
struct UnitTraffic {
  Transfer first;            ///< weight gathers in the first forward pass of a step
  Transfer forward;          ///< weight gathers in later forward passes
  Transfer backward;         ///< weight gathers in a backward pass
  Transfer reduction;        ///< gradient reduction
  bool can_prefetch = true;  ///< weights can be gathered while the previous unit computes

  UnitTraffic& operator+=(const UnitTraffic& other);
};

/// Communication of a layout in its data-parallel groups.
class WeightTraffic {
 public:
  explicit WeightTraffic(const PredictionInput& input);

  const WeightCounts& weights() const { return weights_; }
  /// Returns the seconds by which `links` seconds of communication prolong concurrent `work`: the part that is not
  /// overlapped, or the slowdown of the work.
  double exposed_seconds(double work, double links) const;

  /// Returns the traffic of one layer. `kind` is the index of its block in WeightCounts::blocks().
  UnitTraffic layer_traffic(std::size_t kind, bool is_recomputed) const;
  UnitTraffic embedding_traffic(const StageContents& stage) const;
  /// Returns the traffic of the output part of a stage (StageContents::output_part()).
  UnitTraffic output_traffic(const StageContents& stage) const;

  /// Returns the gradient reduction of a stage, once per step.
  Transfer reduce(const StageContents& stage) const;
  /// Returns the weight gathering of a stage after the update.
  Transfer gather(const StageContents& stage) const;
  /// Returns the number of a stage's weights that this rank stores under ZeRO 3.
  double stored_weights(const StageContents& stage) const;
  /// Returns how many of stored_weights() are gathered twice in a forward pass.
  double regathered_weights(const StageContents& stage) const;
  /// Returns the number of elements of a stage's gradients that this rank holds between microbatches.
  double held_gradients(const StageContents& stage) const;
  /// Returns the number of a stage's weights that this rank updates.
  double updated_weights(const StageContents& stage) const;

 private:
  /// Weights with the same ZeRO groups: ranks among which they are sharded, and ranks that hold the same shard.
  struct Group {
    WeightCount weights;
    RankGroup shards, instances;
    double tensors = 1;            ///< number of tensors that are gathered separately
    bool has_node_groups = false;  ///< zero_hpz_partition_size is above 1
  };
  std::vector<Group> groups_of(const WeightCounts::BlockCounts& block) const;
  Group vocabulary() const;
  std::vector<Group> groups_of(const StageContents& stage) const;

  /// Returns true if the stage's output uses the weights of its own embedding.
  bool ties_own_embedding(const StageContents& stage) const;
  /// Returns the measured time per element within a host, scaled to the ranks of the group; 0 = not measured.
  double measured_ns(double MeasuredRates::*rate, const RankGroup& group) const;
  Transfer gather(const Group& group, bool uses_secondary_shard) const;
  Transfer reduce_scatter_gradients(const Group& group) const;
  Transfer packed_reduce_scatter(double elements, const Group& group) const;
  /// Returns the device time of low-rank factors: GEMMs, and passes over gradients and error feedback.
  double factor_seconds(double elements) const;
  Transfer reduce_unit(const Group& group) const;
  UnitTraffic unit_traffic(const Group& group) const;

  const PredictionInput& input_;
  const Layout& layout_;
  Collectives collectives_;
  WeightCounts weights_;
  double element_, slowdown_;
  double weight_bytes_, gradient_bytes_;  // bytes per element sent
};

// Exposed communication of a microbatch in ZeRO 2 and 3, which gather the weights and reduce the gradients unit by
// unit: embedding, layers, output.

/// Compute and communication of a unit. Units are in the order of forward passes.
struct UnitCost {
  double forward = 0, backward = 0;  ///< seconds of the unit's own passes
  UnitTraffic traffic;
};

/// Seconds that communication adds to the passes through all units.
struct ExposedComm {
  double forward = 0, backward = 0;
  double boundary_exposed = 0;  ///< additional seconds of the first forward plus the last backward pass of a step
};

/// Returns the exposed communication. Weights are gathered while the previous unit computes, and gradients are reduced
/// while the next unit computes. The gather of the first unit is not overlapped, and the last weights of forward are
/// gathered again for backward. The gradients of the last unit are reduced during the forward pass of the next
/// microbatch.
ExposedComm exposed_comm(const std::vector<UnitCost>& units, const WeightTraffic& traffic);

}  // namespace mcpp
