// What data-parallel ranks send one another of weights and gradients, and how long that takes.
#pragma once
#include <vector>

#include "plan/step/weight_counts.h"

namespace mcpp {

/// Seconds over links, which other work may hide, and of the device, which packs, unpacks and adds.
struct Transfer {
  double links = 0, device = 0;

  double total() const { return links + device; }
  Transfer& operator+=(const Transfer& other);
  Transfer operator*(double factor) const { return {factor * links, factor * device}; }
};

/// What ZeRO 2 and 3 send of a unit of a model, an embedding, a layer or an output, in each microbatch.
struct UnitTraffic {
  Transfer first, forward, backward;  ///< its weights: in the first pass of a step, in later ones, and in backward
  Transfer sums;                      ///< its gradients
  bool is_ahead = true;               ///< weights can come while the unit before it computes

  UnitTraffic& operator+=(const UnitTraffic& other);
};

/// Of a job that outlives it.
class WeightTraffic {
 public:
  explicit WeightTraffic(const Job& job);

  const WeightCounts& weights() const { return weights_; }
  /// What `links` seconds of communication add to `work` beside which they go: what is left over, or as it slows the
  /// work down.
  double beside(double work, double links) const;

  UnitTraffic of_layer(LayerKind kind, bool is_recomputed) const;
  UnitTraffic of_embedding(const StageContents& stage) const;
  UnitTraffic of_output(const StageContents& stage) const;

  /// Of a stage's gradients, once a step.
  Transfer reduce(const StageContents& stage) const;
  /// Of its weights, after the update.
  Transfer gather(const StageContents& stage) const;
  /// Of a stage's weights, those that this rank keeps where ZeRO 3 cuts them.
  double kept(const StageContents& stage) const;
  /// Of these, those that are gathered twice in a forward pass.
  double kept_twice(const StageContents& stage) const;
  /// And those that it updates.
  double updated(const StageContents& stage) const;

 private:
  /// Ranks that share what ZeRO cuts, those that hold the same part of it, and weights that lie on them.
  struct Group {
    WeightCount weights;
    RankGroup shards, instances;
    double tensors = 1;      ///< that are gathered one after another
    bool has_nodes = false;  ///< see zero_hpz_partition_size
  };
  std::vector<Group> groups_of(LayerKind kind) const;
  Group vocabulary() const;
  std::vector<Group> groups_of(const StageContents& stage) const;

  /// Whether its output uses the weights of its own embedding.
  bool ties_own_embedding(const StageContents& stage) const;
  /// What was measured of so many ranks' numbers on their way inside of a machine; 0 = nothing.
  double measured_ns(double MeasuredRates::*rate, const RankGroup& group) const;
  Transfer gather(const Group& group, bool from_copy) const;
  Transfer scatter_sums(const Group& group) const;
  Transfer packed_sums(double elements, const Group& group) const;
  /// What factors of low rank cost the device: products, and ways over gradients and what is remembered.
  double factor_seconds(double elements) const;
  Transfer unit_sums(const Group& group) const;
  UnitTraffic of_unit(const Group& group) const;

  const Job& job_;
  const Layout& layout_;
  Collectives collectives_;
  WeightCounts weights_;
  double element_, lost_;
  double weight_bytes_, gradient_bytes_;  // of an element on its way
};

}  // namespace mcpp
