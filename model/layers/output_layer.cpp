#include "model/layers/output_layer.h"

#include "parallel/tp/mappings.h"
#include "tensor/dtype.h"
#include "tensor/processor.h"

namespace mcpp {
namespace {

constexpr const char* kOutputName = "output_layer.weight";

const char* weight_name(const ModelConfig& config) {
  return config.untie_embeddings_and_output_weights ? kOutputName : "embedding.word_embeddings.weight";
}

/// Returns the standard deviation of initial values. A copy of the word embeddings has the standard deviation of the
/// embeddings.
double init_std_of(const std::string& name, const ModelConfig& config) {
  return name == kOutputName ? config.init_method_std : config.embedding_init_std();
}

}  // namespace

VocabMatrix::VocabMatrix(const std::string& name, StoredRef<ModelContext> context, Param* shared)
    : shared_(shared),
      weight_(
          name,
          split_box({context.get().config.padded_vocab_size(), context.get().config.hidden_size}, 0, context.get().tp),
          Init::Normal, init_std_of(name, context.get().config)),
      keeps_gradient_(context.get().graph_warmup_steps > 0) {}

void VocabMatrix::allocate_gradient() {
  const Tensor& value = shared_->value;
  weight_.main_grad =
      Tensor::empty(weight_.box.shape, accumulate_dtype(value.dtype()), value.device(), MemoryClass::Grads);
}

void VocabMatrix::add_shared_gradient() {
  if (!shared_ || !weight_.has_grad()) return;
  shared_->add_grad([&](Tensor& sum, float beta) {
    beta == 0 ? ops::copy(weight_.main_grad, sum) : ops::add_to(weight_.main_grad, sum);
  });
  if (!keeps_gradient_) weight_.main_grad = {};
  weight_.clear_grad();
}

void VocabMatrix::visit(const ParamVisitor& f) {
  if (!shared_) f(weight_);
}

OutputLayer::OutputLayer(StoredRef<ModelContext> context, Param* shared)
    : context_(context),
      region_(context_.tp, context_.sequence_parallel,
              overlaps_communication(context_.tp_comm_overlap, context_.fp8_recipe("output_layer"))),
      fp8_(context_.fp8_recipe("output_layer")),
      weight_(weight_name(context_.config), context, shared) {
  const bool is_tied = !context_.config.untie_embeddings_and_output_weights;
  MCPP_CHECK(!shared || is_tied, "untied embeddings cannot be shared");
  const std::optional<Fp8Recipe> recipe = context_.fp8_recipe("output_layer");
  // Multi-token prediction also looks up tied word embeddings in this matrix, unrounded.
  const bool is_lookup_table = is_tied && context_.config.mtp_num_layers > 0;
  if (recipe && !shared && !is_lookup_table) set_fp8_rounding(*weight_.own_weight(), "output_layer", recipe->passes);
  if (is_tied && !shared) weight_.own_weight()->placement.pp = context_.word_embedding_ranks();
}

Tensor OutputLayer::scaled(const Tensor& hidden) const {
  const double factor = context_.config.logit_scale();
  if (factor == 1) return hidden;
  Tensor input = Tensor::like(hidden);
  ops::copy(hidden, input);
  ops::scale(input, factor);
  return input;
}

void OutputLayer::soft_cap(Tensor& logits) const {
  if (context_.config.final_logit_softcapping > 0) ops::soft_cap(logits, context_.config.final_logit_softcapping);
}

Tensor OutputLayer::logits(const Tensor& hidden, MicrobatchContext& microbatch) {
  const Tensor input = scaled(hidden);
  microbatch.save(this, input);
  const LinearScales scales = fp8_.forward(this, input, {weight_.value()}, microbatch);
  const Tensor full_y = Tensor::like(input, region_.full_shape(input, weight_.value().dim(0)));
  region_.gather_and_multiply(input, [&](const Tensor& rows, i64 first) {
    Tensor y_rows = rows_like(rows, full_y, first).as_matrix();
    multiply_scaled(rows.as_matrix(), weight_.value(), y_rows, scales.forward(), {.transpose_b = true});
  });
  Tensor y = full_y.as_matrix();
  soft_cap(y);
  return y;
}

Tensor OutputLayer::logits_of_rows(const Tensor& hidden, const Tensor& rows, MicrobatchContext& microbatch) {
  MCPP_CHECK(!microbatch.saves_for_backward, "backward needs the logits of all rows");
  const auto select = [&](const Tensor& x) {
    Tensor selected = Tensor::like(x, {rows.numel(), x.dim(1)});
    ops::gather_rows(x, rows, selected);
    return selected;
  };
  // The scales of a recipe depend on all rows.
  if (context_.fp8_recipe("output_layer")) return select(logits(hidden, microbatch));
  const Tensor input = select(region_.gather_sequence(scaled(hidden)).wait().as_matrix());
  Tensor y = Tensor::like(input, {input.dim(0), weight_.value().dim(0)});
  ops::matmul(input, weight_.value(), y, {.transpose_b = true});
  soft_cap(y);
  return y;
}

TokenLosses OutputLayer::loss(const Tensor& hidden, const Tensor& targets, double grad_scale, double z_loss_coeff,
                              MicrobatchContext& microbatch) {
  const ProfileRange range(context_.device, context_.profiler, "output_layer and loss");
  Tensor y = logits(hidden, microbatch);
  TokenLosses losses =
      vocab_parallel_cross_entropy(y, targets.view({-1}), weight_.box().offset[0], context_.config.vocab_size,
                                   {microbatch.saves_for_backward ? grad_scale : 0, microbatch.loss_factor},
                                   context_.tp, context_.config.final_logit_softcapping, z_loss_coeff);
  microbatch.save(this, y);
  return losses;
}

Tensor OutputLayer::backward(MicrobatchContext& microbatch) {
  const ProfileRange range(context_.device, context_.profiler, "output_layer");
  const Tensor d_logits = microbatch.take(this);
  const LinearScales scales = fp8_.backward(this, {d_logits}, microbatch);
  const Tensor input = microbatch.take(this);
  const auto input_gradient = [&](Tensor& dx, i64 first) {
    const i64 batch = dx.dim(1);
    Tensor rows = dx.as_matrix();
    multiply_scaled(rows_like(rows, d_logits, first * batch), weight_.value(), rows, scales.dgrad(columns()));
    if (const double factor = context_.config.logit_scale(); factor != 1) ops::scale(dx, factor);
  };
  return region_.backward(input, microbatch, input_gradient,
                          [this, d_logits, scales](const Tensor& full) { weight_gradient(d_logits, full, scales); });
}

void OutputLayer::weight_gradient(const Tensor& d_logits, const Tensor& input, const LinearScales& scales) {
  weight_.add_grad([&](Tensor& sum, float beta) {
    multiply_scaled(d_logits, input.as_matrix(), sum, scales.wgrad(columns()), {.transpose_a = true, .beta = beta});
  });
}

OutputColumns OutputLayer::columns() const {
  return output_columns(kOutputName, weight_.box());
}

ActivationPlacement OutputLayer::output_placement(ActivationPlacement hidden) const {
  region_.check_entry(hidden, weight_.name());
  return ActivationPlacement::ColumnSharded;
}

}  // namespace mcpp
