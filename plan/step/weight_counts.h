// Weight counts of a rank, computed from the parameters of its blocks. The costs of communication and of the optimizer
// are proportional to these counts.
#pragma once
#include <memory>
#include <vector>

#include "model/config/block_spec.h"
#include "parallel/stages.h"
#include "plan/cost/layer_time.h"

namespace mcpp {

/// Number of weights, and number of gradient elements that are reduced. The second number is smaller for matrices whose
/// gradients are reduced as low-rank factors (`factorized`).
struct WeightCount {
  double all = 0, summed = 0, factorized = 0;

  WeightCount& operator+=(const WeightCount& other);
  WeightCount operator*(double factor) const { return {factor * all, factor * summed, factor * factorized}; }
};

class WeightCounts {
 public:
  /// Keeps a reference to the model.
  explicit WeightCounts(const PredictionInput& input);

  /// Counts of a block on one rank: weights on the ranks of the dense layers, and weights of experts.
  struct BlockCounts {
    WeightCount dense, experts;
    double tensors = 0;  ///< number of dense weight tensors
  };
  /// Returns the distinct blocks of the model, which `kind` indexes below.
  const BlockKinds& blocks() const { return measurements_->blocks; }
  const BlockCounts& block_counts(std::size_t kind) const { return counts_[kind]; }
  /// Returns the counts of all layers of multi-token prediction, which are on the stage of the final norm.
  const BlockCounts& mtp_counts() const { return mtp_; }
  /// Returns the weights of the embedding, which equal the weights of the output in number.
  double vocabulary() const { return vocabulary_; }
  /// Return the weights of a stage without its experts, and of its experts.
  WeightCount stage_weights(const StageContents& stage) const;
  WeightCount stage_experts(const StageContents& stage) const;

 private:
  const ModelConfig& model_;
  std::shared_ptr<const ModelMeasurements> measurements_;
  std::vector<BlockCounts> counts_;  // by kind
  BlockCounts mtp_;
  double vocabulary_;
};

}  // namespace mcpp
