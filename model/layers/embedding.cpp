#include "model/layers/embedding.h"

#include "tensor/processor.h"

namespace mcpp {

LanguageModelEmbedding::LanguageModelEmbedding(StoredRef<ModelContext> context)
    : context_(context),
      word_embeddings_("embedding.word_embeddings", context_.config.padded_vocab_size(), context_.config.hidden_size,
                       context_.tp, context_.config.embedding_init_std(), context_.sequence_parallel) {
  word_embeddings().placement.pp = context_.word_embedding_ranks();
  if (context_.config.position_embedding_type == PositionEmbedding::LearnedAbsolute) {
    position_embeddings_ = std::make_unique<Param>("embedding.position_embeddings.weight",
                                                   Shape{context_.config.max_positions(), context_.config.hidden_size},
                                                   Init::Normal, context_.config.embedding_init_std());
    context_.place_in_stream(*position_embeddings_);
  }
}

Dropout LanguageModelEmbedding::dropout(const Tensor& y, const MicrobatchContext& microbatch) const {
  return context_.dropout_for(context_.config.hidden_dropout, "embedding", context_.positions(y, microbatch).ranges,
                              microbatch);
}

double embedding_multiplier(const ModelContext& context) {
  double value = 0;
  on_float(context.dtype, [&]<class T>() { value = to_double(from_double<T>(context.config.embedding_multiplier)); });
  return value;
}

Tensor LanguageModelEmbedding::forward(const Tensor& tokens, MicrobatchContext& microbatch) {
  const ProfileRange range(context_.device, context_.profiler, "embedding");
  Tensor y = word_embeddings_.forward(tokens, microbatch);
  if (const double factor = embedding_multiplier(context_); factor != 1) ops::scale(y, factor);
  if (position_embeddings_) ops::add_positions(y, position_embeddings_->value, context_.positions(y, microbatch));
  if (const Dropout drop = dropout(y, microbatch); drop.p > 0) ops::dropout(y, drop, y);
  return y;
}

Tensor LanguageModelEmbedding::backward(const Tensor& dy, MicrobatchContext& microbatch) {
  const ProfileRange range(context_.device, context_.profiler, "embedding");
  Tensor dx = dy;
  if (const Dropout drop = dropout(dy, microbatch); drop.p > 0) {
    dx = Tensor::like(dy);
    ops::dropout(dy, drop, dx);
  }
  if (position_embeddings_) {
    microbatch.run_or_delay_wgrad([this, dx, positions = context_.positions(dx, microbatch)] {
      position_embeddings_->add_grad(
          [&](Tensor& sum, float beta) { ops::add_positions_backward(dx, positions, sum, beta); });
    });
  }
  if (const double factor = embedding_multiplier(context_); factor != 1) {
    Tensor scaled = Tensor::like(dx);
    ops::copy(dx, scaled);
    ops::scale(scaled, factor);
    dx = scaled;
  }
  return word_embeddings_.backward(dx, microbatch);
}

ActivationPlacement LanguageModelEmbedding::output_placement(ActivationPlacement tokens) const {
  const ActivationPlacement y = word_embeddings_.output_placement(tokens);
  if (position_embeddings_) check_gradient_spread(*position_embeddings_, y);
  return y;
}

void LanguageModelEmbedding::visit(const ParamVisitor& f) {
  visit_word_embeddings(f);
  visit_position_embeddings(f);
}

void LanguageModelEmbedding::visit_position_embeddings(const ParamVisitor& f) {
  if (position_embeddings_) f(*position_embeddings_);
}

}  // namespace mcpp
