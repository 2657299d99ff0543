#include "megatron_cpp/training_state.h"

#include <array>
#include <cmath>

namespace mcpp {
namespace {

/// Gradients of this many elements are reduced together.
constexpr i64 kBucketElements = 40'000'000;

std::unique_ptr<ParamAndGradBuffer> allocate(GPTModel& model, Communicator& dp) {
  std::vector<UnitParam> params;
  model.visit([&](Param& param, int unit) { params.push_back({&param, unit}); });
  const ModelContext& context = model.context();
  return make_param_and_grad_buffer(params, context.dtype, context.device, {dp, dp},
                                    {.bucket_elements = kBucketElements});
}

std::unique_ptr<ParamAndGradBuffer> allocate_and_initialize(GPTModel& model, Communicator& dp) {
  auto memory = allocate(model, dp);
  model.visit([&](Param& param, int) { initialize(param, model.context().seed); });
  model.set_memory(*memory);
  return memory;
}

Pass pass_for(const MicroBatch& batch, bool training, bool is_last) {
  Pass pass;
  pass.training = pass.keeps_stash = training;
  pass.samples = batch.samples;
  pass.is_last = is_last;
  return pass;
}

}  // namespace

TrainingState::TrainingState(const ModelContext& context, const OptimizerConfig& optimizer, Communicator& dp)
    : dp_(dp),
      model_(context),
      memory_(allocate_and_initialize(model_, dp)),
      optimizer_(std::array{memory_.get()}, optimizer) {}

StepOutcome TrainingState::sum_over_ranks(double loss_sum, i64 tokens) {
  Tensor sums = Tensor::empty({2}, DType::F64, model_.context().device, MemoryClass::Other);
  sums.data<double>()[0] = loss_sum;
  sums.data<double>()[1] = static_cast<double>(tokens);
  dp_.all_reduce(sums, ReduceOp::Sum).wait();
  const double total = sums.data<double>()[1];
  return {.loss = sums.data<double>()[0] / total, .tokens = static_cast<i64>(total)};
}

StepOutcome TrainingState::train_step(std::span<const MicroBatch> batches, double lr, double weight_decay) {
  double loss_sum = 0;
  i64 tokens = 0;
  memory_->clear_grads();
  for (const MicroBatch& batch : batches) {
    Pass pass = pass_for(batch, true, &batch == &batches.back());
    const TokenLosses losses = model_.forward(batch.tokens, batch.targets, /*loss_scale=*/1, pass);
    model_.backward(pass);
    loss_sum += losses.sum;
    tokens += losses.tokens;
  }
  memory_->finish();

  StepOutcome outcome = sum_over_ranks(loss_sum, tokens);
  if (!std::isfinite(outcome.loss)) {
    outcome.skipped = true;
    return outcome;
  }
  // Gradients are of the summed loss; dividing by the tokens of the global batch makes them layout-independent.
  const StepResult step = optimizer_.step(lr, weight_decay, 1.0 / static_cast<double>(outcome.tokens));
  outcome.grad_norm = step.grad_norm;
  outcome.skipped = step.skipped;
  return outcome;
}

StepOutcome TrainingState::evaluate(std::span<const MicroBatch> batches) {
  double loss_sum = 0;
  i64 tokens = 0;
  for (const MicroBatch& batch : batches) {
    Pass pass = pass_for(batch, false, true);
    const TokenLosses losses = model_.forward(batch.tokens, batch.targets, 1, pass);
    loss_sum += losses.sum;
    tokens += losses.tokens;
  }
  return sum_over_ranks(loss_sum, tokens);
}

}  // namespace mcpp
