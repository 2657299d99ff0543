#include "model/output_layer.h"

#include "parallel/tp/split.h"

namespace mcpp {

OutputLayer::OutputLayer(const ModelContext& context, Param* tied)
    : context_(context), final_layernorm_("decoder.final_layernorm", context), tied_(tied) {
  if (tied) return;
  const ModelConfig& config = context.config;
  own_weight_ = std::make_unique<Param>("output_layer.weight",
                                        split_box({config.padded_vocab_size(), config.hidden_size}, 0, context.tp),
                                        Init::Normal, config.init_method_std);
}

Tensor OutputLayer::logits(const Tensor& hidden, Pass& pass) {
  const Tensor normalized = final_layernorm_.forward(hidden, pass);
  pass.save(this, normalized);
  const Tensor rows = normalized.as_matrix();
  Tensor y = Tensor::like(rows, {rows.dim(0), weight().value.dim(0)});
  ops::matmul(rows, weight().value, y, {.transpose_b = true});
  return y;
}

TokenLosses OutputLayer::loss(const Tensor& hidden, const Tensor& targets, double loss_scale, Pass& pass) {
  Tensor y = logits(hidden, pass);
  TokenLosses losses =
      vocab_parallel_cross_entropy(y, targets.view({-1}), weight().box.offset[0], context_.config.vocab_size,
                                   pass.keeps_stash ? loss_scale : 0, context_.tp);
  pass.save(this, y);
  return losses;
}

Tensor OutputLayer::backward(Pass& pass) {
  const Tensor d_logits = pass.take(this), normalized = pass.take(this);
  Tensor d_normalized = Tensor::like(normalized);
  Tensor d_rows = d_normalized.as_matrix();
  ops::matmul(d_logits, weight().value, d_rows);
  Work sum = context_.tp.all_reduce(d_normalized, ReduceOp::Sum);
  pass.weights([this, d_logits, normalized] {
    ops::matmul(d_logits, normalized.as_matrix(), weight().main_grad,
                {.transpose_a = true, .beta = weight().take_beta()});
  });
  sum.wait();
  return final_layernorm_.backward(d_normalized, pass);
}

void OutputLayer::visit(const ParamVisitor& f) {
  final_layernorm_.visit(f);
  if (own_weight_) f(*own_weight_);
}

}  // namespace mcpp
