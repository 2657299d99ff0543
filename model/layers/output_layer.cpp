#include "model/layers/output_layer.h"

#include "parallel/tp/mappings.h"
#include "tensor/dtype.h"
#include "tensor/processor.h"

namespace mcpp {
namespace {

const char* weight_name(const ModelConfig& config) {
  return config.untie_embeddings_and_output_weights ? "output_layer.weight" : "embedding.word_embeddings.weight";
}

}  // namespace

OutputLayer::OutputLayer(StoredRef<ModelContext> context, Param* shared)
    : context_(context),
      region_(context_.tp, context_.sequence_parallel),
      final_layernorm_("decoder.final_layernorm", context),
      shared_(shared),
      weight_(weight_name(context_.config),
              split_box({context_.config.padded_vocab_size(), context_.config.hidden_size}, 0, context_.tp),
              Init::Normal, context_.config.init_method_std) {
  MCPP_CHECK(!shared || !context_.config.untie_embeddings_and_output_weights, "untied embeddings cannot be shared");
  weight_.placement.pp = context_.word_embedding_ranks();
}

Tensor OutputLayer::logits(const Tensor& hidden, MicrobatchContext& microbatch) {
  const Tensor normalized = final_layernorm_.forward(hidden, microbatch);
  microbatch.save(this, normalized);
  const Tensor rows = region_.gather_sequence(normalized).wait().as_matrix();
  Tensor y = Tensor::like(rows, {rows.dim(0), weight().dim(0)});
  ops::matmul(rows, weight(), y, {.transpose_b = true});
  if (context_.config.final_logit_softcapping > 0) ops::soft_cap(y, context_.config.final_logit_softcapping);
  return y;
}

TokenLosses OutputLayer::loss(const Tensor& hidden, const Tensor& targets, double grad_scale,
                              MicrobatchContext& microbatch) {
  const ProfileRange range(context_.device, context_.profiler, "output_layer and loss");
  Tensor y = logits(hidden, microbatch);
  TokenLosses losses = vocab_parallel_cross_entropy(
      y, targets.view({-1}), weight_.box.offset[0], context_.config.vocab_size,
      microbatch.saves_for_backward ? grad_scale : 0, context_.tp, context_.config.final_logit_softcapping);
  microbatch.save(this, y);
  return losses;
}

Tensor OutputLayer::backward(MicrobatchContext& microbatch) {
  const ProfileRange range(context_.device, context_.profiler, "output_layer");
  const Tensor d_logits = microbatch.take(this), normalized = microbatch.take(this);
  const auto input_gradient = [&] {
    Tensor dx = Tensor::like(normalized, {d_logits.dim(0) / normalized.dim(1), normalized.dim(1), normalized.dim(2)});
    Tensor rows = dx.as_matrix();
    ops::matmul(d_logits, weight(), rows);
    return dx;
  };
  const Tensor d_normalized =
      region_.backward(normalized, microbatch, input_gradient,
                       [this, d_logits](const Tensor& full) { weight_gradient(d_logits, full); });
  return final_layernorm_.backward(d_normalized, microbatch);
}

void OutputLayer::weight_gradient(const Tensor& d_logits, const Tensor& normalized) {
  Tensor& dw = weight_.main_grad;
  if (shared_ && !dw.defined())
    dw = Tensor::empty(weight_.box.shape, accumulate_dtype(d_logits.dtype()), d_logits.device(), MemoryClass::Grads);
  weight_.add_grad([&](Tensor& sum, float beta) {
    ops::matmul(d_logits, normalized.as_matrix(), sum, {.transpose_a = true, .beta = beta});
  });
}

void OutputLayer::add_shared_gradient() {
  if (!shared_ || !weight_.has_grad()) return;
  shared_->add_grad([&](Tensor& sum, float beta) {
    beta == 0 ? ops::copy(weight_.main_grad, sum) : ops::add_to(weight_.main_grad, sum);
  });
  weight_.main_grad = {};
  weight_.clear_grad();
}

ActivationPlacement OutputLayer::output_placement(ActivationPlacement hidden) const {
  region_.check_entry(final_layernorm_.output_placement(hidden), weight_.name);
  return ActivationPlacement::ColumnSharded;
}

void OutputLayer::visit(const ParamVisitor& f) {
  visit_norm(f);
  visit_weight(f);
}

void OutputLayer::visit_weight(const ParamVisitor& f) {
  if (!shared_) f(weight_);
}

}  // namespace mcpp
