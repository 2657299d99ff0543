// Model, gradients and optimizer of one run on one rank, and the step that trains them.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "model/gpt_model.h"
#include "optimizer/optimizer.h"

namespace mcpp {

/// One forward and backward pass's worth of samples, sequence first.
struct MicroBatch {
  Tensor tokens, targets;    ///< int32 [s, b]
  std::vector<i64> samples;  ///< [b] global sample numbers
};

struct StepOutcome {
  double loss = 0;       ///< mean over the target tokens of the global batch
  i64 tokens = 0;        ///< of the global batch
  double grad_norm = 0;  ///< before clipping
  bool skipped = false;  ///< loss or gradient was not finite: nothing was changed
};

class TrainingState {
 public:
  /// Allocates parameters and gradients, draws the initial weights, allocates the optimizer's state.
  TrainingState(const ModelContext& context, const OptimizerConfig& optimizer, Communicator& dp);

  GPTModel& model() { return model_; }
  Optimizer& optimizer() { return optimizer_; }
  const Optimizer& optimizer() const { return optimizer_; }
  ParamAndGradBuffer& memory() { return *memory_; }

  /// Forward and backward over this rank's microbatches of one global batch, then the update.
  StepOutcome train_step(std::span<const MicroBatch> batches, double lr, double weight_decay);
  /// Mean loss of microbatches without training: over all ranks.
  StepOutcome evaluate(std::span<const MicroBatch> batches);

 private:
  StepOutcome sum_over_ranks(double loss_sum, i64 tokens);

  Communicator& dp_;
  GPTModel model_;
  std::unique_ptr<ParamAndGradBuffer> memory_;
  Optimizer optimizer_;
};

}  // namespace mcpp
