// Learning rate and weight decay as functions of how many samples were trained on: Megatron-LM's
// OptimizerParamScheduler.
#pragma once
#include "optimizer/config.h"

namespace mcpp {

/// How long the training is, in iterations or in samples (exactly one is not 0).
struct TrainingLength {
  i64 train_iters = 0;
  i64 train_samples = 0;
  i64 global_batch_size = 1;  ///< samples per iteration, wherever iterations are turned into samples
};

/// Pure: no state, so resuming needs nothing but the number of samples. Iterations in the configuration count as
/// global_batch_size samples each.
class LrSchedule {
 public:
  /// BadInput, naming the keys, when the warm-up is not shorter than the decay or WSD's part is longer than it.
  LrSchedule(const OptimizerConfig& config, const TrainingLength& length);

  /// `samples`: those of all updates before this one. The update of a skipped step does not count.
  double lr(i64 samples) const;
  double weight_decay(i64 samples) const;

 private:
  double decay_coefficient(double samples) const;

  // All lengths are in samples; a warm-up given as a fraction need not be whole.
  OptimizerConfig config_;
  double warmup_ = 0;
  double decay_ = 0;
  double wsd_decay_ = 0;
  double training_ = 0;
};

}  // namespace mcpp
