// Embedding layer: word embeddings times embedding_multiplier(), plus learned positions if the model has them, followed
// by dropout.
#pragma once
#include <memory>

#include "base/stored_ref.h"
#include "model/config/context.h"
#include "parallel/tp/vocab_parallel.h"

namespace mcpp {

/// Returns the factor of the word embeddings, rounded to the dtype of the model as in Gemma.
double embedding_multiplier(const ModelContext& context);

/// Maps tokens, int32 [s, b], to hidden states [s, b, h] (sequence parallel: this rank's shard [s / tp, b, h]).
class LanguageModelEmbedding final : public Module {
 public:
  explicit LanguageModelEmbedding(StoredRef<ModelContext> context);

  Tensor forward(const Tensor& tokens, MicrobatchContext& microbatch) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch) override;
  ActivationPlacement output_placement(ActivationPlacement tokens) const override;
  void visit(const ParamVisitor& f) override;
  void visit_word_embeddings(const ParamVisitor& f) { word_embeddings_.visit(f); }
  /// Calls f on the learned positions, if the model has them.
  void visit_position_embeddings(const ParamVisitor& f);
  Param& word_embeddings() { return word_embeddings_.weight(); }

 private:
  Dropout dropout(const Tensor& y, const MicrobatchContext& microbatch) const;

  const ModelContext& context_;
  VocabParallelEmbedding word_embeddings_;
  std::unique_ptr<Param> position_embeddings_;
};

}  // namespace mcpp
