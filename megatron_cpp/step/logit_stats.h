// Largest attention logits of a step over all ranks, and the reaction to large ones: QK-clip (Kimi K2, 2025).
#pragma once
#include <span>
#include <vector>

#include "model/gpt_model.h"
#include "optimizer/row_scale.h"

namespace mcpp {

/// Attention logits of a layer over the global batch of a step.
struct LayerLogits {
  i64 layer = 0;
  double largest = 0;     ///< over all heads
  i64 clipped_heads = 0;  ///< heads that QK-clip scaled
};

/// Returns the factor of rows of queries or keys, given for each head the ratio by which its logits shrink (1 = not at
/// all). Keys shrink by the weakest ratio of the heads that share them, to the power 1 - alpha, and queries by the
/// rest, so that the logits of each head shrink exactly by its ratio. With a key per head, queries shrink by
/// ratio^alpha.
double qk_factor(const QkRows& rows, std::span<const double> ratios, double alpha);

/// Recorder of the attention logits of a step on all layers of this rank, and of the scaling that QK-clip derives from
/// them.
class LogitStats {
 public:
  /// `models` are the chunks of this rank.
  LogitStats(const ModelConfig& config, const OptimizerConfig& optimizer, std::span<GPTModel* const> models,
             Communicator& world, Device& device);

  bool has_clip() const { return has_clip_; }
  /// Selects whether the logits of the next passes are recorded, and clears earlier ones. Must be identical on all
  /// ranks.
  void record(bool is_recording);
  /// Combines the logits of all ranks after the passes. Collective.
  void max_over_ranks();
  /// Returns the scaling of this rank's weights by QK-clip; empty if no logit is above the threshold.
  RowScales clip();
  /// Returns the result of the last max_over_ranks() by layer; empty if nothing was recorded.
  std::vector<LayerLogits> layers() const;

 private:
  std::span<double> row(i64 layer) {
    return std::span(table_).subspan(static_cast<std::size_t>(layer * columns_), static_cast<std::size_t>(columns_));
  }

  bool has_clip_ = false;
  double threshold_, alpha_;
  i64 layers_, columns_ = 0;  // columns: heads of the layer with the most
  std::vector<GPTModel::LayerAttention> attentions_;
  Communicator& world_;
  Device& device_;
  bool is_recording_ = false;
  std::vector<double> table_;       // [layers, columns]; -infinity where there is no head
  std::vector<i64> clipped_heads_;  // by layer, in the last clip()
};

}  // namespace mcpp
