// Weight counts of a rank, without biases and norms, to which the costs of communication and of the optimizer are
// proportional.
#pragma once
#include "parallel/pp/stages.h"
#include "plan/cost/layer_time.h"

namespace mcpp {

/// Elements of matrices, and elements that are reduced for their gradients: the latter are fewer if gradients are
/// reduced as low-rank factors, as for the matrices counted in `factorized`.
struct WeightCount {
  double all = 0, summed = 0, factorized = 0;

  WeightCount& operator+=(const WeightCount& other);
  WeightCount operator*(double factor) const { return {factor * all, factor * summed, factor * factorized}; }
};

class WeightCounts {
 public:
  WeightCounts(const ModelConfig& model, const Layout& layout);

  /// Returns how many of the layers [first, end) are of this kind.
  i64 layers(LayerKind kind, i64 first, i64 end) const;
  bool has_layers(LayerKind kind) const { return layers(kind, 0, model_.num_layers) > 0; }

  /// Return the weights of one layer that are on the ranks of the dense layers, and the weights of its experts.
  double layer_weights(LayerKind kind) const { return (kind == LayerKind::Dense ? dense_ : sparse_).all; }
  double layer_experts() const { return experts_.all; }
  /// Returns the number of weight tensors of a dense layer.
  double layer_tensors() const { return tensors_; }
  /// Returns the weights of the embedding, equal to those of the output.
  double vocabulary() const { return vocabulary_.all; }
  /// Return the weights of a stage without its experts, and of its experts.
  WeightCount stage_weights(const StageContents& stage) const;
  WeightCount stage_experts(const StageContents& stage) const;

 private:
  const ModelConfig& model_;
  WeightCount dense_, sparse_, experts_, vocabulary_;
  double tensors_ = 0;
};

}  // namespace mcpp
