// The weights of a rank, without biases and norms: what communication and the optimizer cost is in proportion to.
#pragma once
#include "parallel/pp/stages.h"
#include "plan/cost/layer_time.h"

namespace mcpp {

/// Elements of matrices, and of what is summed over ranks for their gradients: less where that is factors of low rank,
/// as it is for those in `factorized`.
struct WeightCount {
  double all = 0, summed = 0, factorized = 0;

  WeightCount& operator+=(const WeightCount& other);
  WeightCount operator*(double factor) const { return {factor * all, factor * summed, factor * factorized}; }
};

class WeightCounts {
 public:
  WeightCounts(const ModelConfig& model, const Layout& layout);

  /// How many layers [first, end) are of a kind.
  i64 layers(LayerKind kind, i64 first, i64 end) const;
  bool has_layers(LayerKind kind) const { return layers(kind, 0, model_.num_layers) > 0; }

  /// Of one layer, those that lie on the ranks of the dense layers; and its experts.
  double of_layer(LayerKind kind) const { return (kind == LayerKind::Dense ? dense_ : sparse_).all; }
  double experts_of_layer() const { return experts_.all; }
  /// In how many tensors a dense layer's weights come.
  double layer_tensors() const { return tensors_; }
  /// Of the embedding, and of the output.
  double vocabulary() const { return vocabulary_.all; }
  /// Of a stage, again without experts, and its experts.
  WeightCount of(const StageContents& stage) const;
  WeightCount experts_of(const StageContents& stage) const;

 private:
  const ModelConfig& model_;
  WeightCount dense_, sparse_, experts_, vocabulary_;
  double tensors_ = 0;
};

}  // namespace mcpp
