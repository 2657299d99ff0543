#include "megatron_cpp/step/model_stage.h"

#include "tensor/ops/ops.h"
#include "tensor/processor.h"

namespace mcpp {

void ModelStage::begin(std::span<const MicroBatch> batches, bool training, double loss_scale, const Tensor& totals) {
  batches_ = batches;
  loss_scale_ = loss_scale;
  totals_ = totals;
  passes_.clear();
  for (const MicroBatch& batch : batches) {
    Pass& pass = passes_.emplace_back();
    pass.training = pass.keeps_stash = training;
    pass.is_last = false;
    pass.samples = batch.samples;
    pass.attention_starts = batch.attention_starts;
    pass.position_starts = batch.position_starts;
  }
}

Tensor ModelStage::forward(int microbatch, const Tensor& x) {
  const ProfileRange range(model_.context().device, "forward");
  const MicroBatch& batch = batches_[static_cast<std::size_t>(microbatch)];
  const Tensor& input = model_.stage().has_embedding ? batch.tokens : x;
  if (!model_.stage().has_output) return model_.forward(input, pass(microbatch));
  ops::add_to(model_.loss(input, batch.targets, loss_scale_, pass(microbatch)).totals, totals_);
  return {};
}

Tensor ModelStage::backward(int microbatch, const Tensor& dy, bool is_last) {
  const ProfileRange range(model_.context().device, "backward");
  pass(microbatch).is_last = is_last;
  return model_.backward(dy, pass(microbatch));
}

Tensor ModelStage::backward_input(int microbatch, const Tensor& dy) {
  const ProfileRange range(model_.context().device, "backward of the input");
  pass(microbatch).defers_weights = true;
  return model_.backward(dy, pass(microbatch));
}

void ModelStage::backward_weight(int microbatch, bool) {
  const ProfileRange range(model_.context().device, "backward of the weights");
  pass(microbatch).run_deferred();
}

Tensor ModelStage::empty_activation() {
  const ModelContext& context = model_.context();
  const i64 seq = context.config.seq_length / (context.sequence_parallel ? context.tp.size() : 1);
  return Tensor::empty({seq, static_cast<i64>(batches_.front().samples.size()), context.config.hidden_size},
                       context.dtype, context.device);
}

}  // namespace mcpp
