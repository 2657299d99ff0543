// The weights of a rank, without biases and norms: what communication and the optimizer cost is in proportion to.
#pragma once
#include "parallel/pp/stages.h"
#include "plan/cost/layer_time.h"

namespace mcpp {

class WeightCounts {
 public:
  WeightCounts(const ModelConfig& model, const Layout& layout);

  /// How many layers [first, end) are of a kind.
  i64 layers(LayerKind kind, i64 first, i64 end) const;
  bool has_layers(LayerKind kind) const { return layers(kind, 0, model_.num_layers) > 0; }

  /// Of one layer, those that lie on the ranks of the dense layers; and its experts.
  double of_layer(LayerKind kind) const { return kind == LayerKind::Dense ? dense_ : sparse_; }
  double experts_of_layer() const { return experts_; }
  /// In how many tensors a dense layer's weights come.
  double layer_tensors() const { return tensors_; }
  /// Of the embedding, and of the output.
  double vocabulary() const { return vocabulary_; }
  /// Of a stage, again without experts, and its experts.
  double of(const StageContents& stage) const;
  double experts_of(const StageContents& stage) const;

 private:
  const ModelConfig& model_;
  double dense_ = 0, sparse_ = 0, experts_ = 0, vocabulary_ = 0, tensors_ = 0;
};

}  // namespace mcpp
