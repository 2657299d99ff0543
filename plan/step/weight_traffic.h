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

/// Of a job that outlives it.
class WeightTraffic {
 public:
  explicit WeightTraffic(const Job& job);

  const WeightCounts& weights() const { return weights_; }
  /// What `links` seconds of communication add to `work` beside which they go: what is left over, or as it slows the
  /// work down.
  double beside(double work, double links) const;

  /// Adds what ZeRO 2 and 3 communicate for a layer in each microbatch.
  void add_to(UnitTime& layer, LayerKind kind, bool is_recomputed) const;
  /// How much longer the first forward pass of a step through such a layer takes, whose weights come from all ranks;
  /// later there is a second copy.
  double first_gather(const UnitTime& layer, LayerKind kind) const;

  /// Of a stage's gradients, once a step.
  Transfer reduce(const StageContents& stage) const;
  /// Of its weights, after the update.
  Transfer gather(const StageContents& stage) const;
  /// Of a stage's weights, those that this rank keeps where ZeRO 3 cuts them.
  double kept(const StageContents& stage) const;
  /// And those that it updates.
  double updated(const StageContents& stage) const;

 private:
  /// Ranks that share what ZeRO cuts, those that hold the same part of it, and weights that lie on them.
  struct Group {
    WeightCount weights;
    RankGroup shards, instances;
    double tensors = 1;     ///< that are gathered one after another
    bool has_copy = false;  ///< a second one
  };
  std::vector<Group> of_layer(LayerKind kind) const;
  std::vector<Group> of_stage(const StageContents& stage) const;

  Transfer gather(const Group& group, bool from_copy) const;
  Transfer scatter_sums(const Group& group) const;
  Transfer packed_sums(double elements, const Group& group) const;
  /// What factors of low rank cost the device: products, and ways over gradients and what is remembered.
  double factor_seconds(double elements) const;
  /// All groups of a layer.
  Transfer gather_layer(LayerKind kind, bool from_copy) const;

  const Job& job_;
  const Layout& layout_;
  Collectives collectives_;
  WeightCounts weights_;
  double element_, lost_;
  double weight_bytes_, gradient_bytes_;  // of an element on its way
};

}  // namespace mcpp
