// Learning rate and weight decay as functions of training progress, as in Megatron-LM's
// OptimizerParamScheduler.
#pragma once
#include "optimizer/config.h"

namespace mcpp {

/// Length of training, in iterations or in samples (exactly one is not 0).
struct TrainingLength {
  i64 train_iters = 0;
  i64 train_samples = 0;
  i64 global_batch_size = 1;  ///< samples per iteration, used where iterations are converted to samples
};

/// Schedule of the learning rate and of weight decay. Stateless: a resumed run only needs the position.
///
/// If lengths are given in iterations, the schedule follows finished iterations; if they are given in samples, it
/// follows samples. In both cases the batch sizes that were used do not matter. Positions and lengths are measured in
/// samples; an iteration counts as global_batch_size samples.
class LrSchedule {
 public:
  /// Throws BadInput, naming the keys, if the warm-up is not shorter than the decay, or if the WSD decay is longer than
  /// the entire decay.
  LrSchedule(const OptimizerConfig& config, const TrainingLength& length);

  /// Returns the position of the next update, given the iterations and samples of all updates applied before it.
  /// Skipped steps do not count.
  i64 position(i64 trained_iterations, i64 trained_samples) const;

  double lr(i64 position) const;
  double weight_decay(i64 position) const;

 private:
  double decay_coefficient(double position) const;

  OptimizerConfig config_;
  i64 samples_per_iteration_ = 0;  // 0 if lengths are given in samples
  // Lengths in samples. If the warm-up is specified as a fraction, its length need not be an integer.
  double warmup_ = 0;
  double decay_ = 0;
  double wsd_decay_ = 0;
  double training_ = 0;
};

}  // namespace mcpp
