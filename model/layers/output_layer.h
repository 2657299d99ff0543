// End of the model: final norm, logits over the vocabulary, with a soft cap if the model has one, and the loss.
#pragma once
#include "base/stored_ref.h"
#include "model/layers/norm.h"
#include "parallel/tp/mappings.h"
#include "parallel/tp/vocab_parallel.h"

namespace mcpp {

/// Output matrix and loss. Its weight is one of three parameters: a separate "output_layer.weight"; the word
/// embeddings' weight, shared with the embedding on the same rank; or, tied to an embedding in a different pipeline
/// stage, a separate parameter with the same name, box and initial values; the gradients of both are summed between the
/// stages.
class OutputLayer {
 public:
  /// `shared`: the word embeddings' weight if embeddings are tied and both are on this rank, otherwise nullptr.
  OutputLayer(StoredRef<ModelContext> context, Param* shared);

  /// Maps hidden [s, b, h] (sequence parallel: [s / tp, b, h]) to logits [s * b, padded vocabulary / tp].
  Tensor logits(const Tensor& hidden, MicrobatchContext& microbatch);
  /// Returns the loss of the microbatch. targets: int32 [s, b]; negative targets are ignored. If backward will follow,
  /// saves the gradient of (sum of the losses x grad_scale) with respect to the logits, which overwrites the
  /// logits.
  TokenLosses loss(const Tensor& hidden, const Tensor& targets, double grad_scale, MicrobatchContext& microbatch);
  /// Returns the gradient with respect to hidden.
  Tensor backward(MicrobatchContext& microbatch);
  /// Returns the placement of the logits, like Module::output_placement().
  ActivationPlacement output_placement(ActivationPlacement hidden) const;

  /// Adds the shared weight's gradient from backward, which is kept separately until then, to that weight's main_grad.
  /// The sum over microbatches is therefore (the embedding's) + (the output's), bitwise identical to tied weights in
  /// different pipeline stages. No-op if the weight is not shared.
  void add_shared_gradient();

  void visit(const ParamVisitor& f);
  void visit_norm(const ParamVisitor& f) { final_layernorm_.visit(f); }
  void visit_weight(const ParamVisitor& f);
  /// Returns nullptr if the weight is shared.
  Param* own_weight() { return shared_ ? nullptr : &weight_; }

 private:
  const Tensor& weight() const { return shared_ ? shared_->value : weight_.value; }
  void weight_gradient(const Tensor& d_logits, const Tensor& normalized);

  const ModelContext& context_;
  TensorParallelRegion region_;
  Norm final_layernorm_;
  Param* shared_;
  Param weight_;  // if shared, only its main_grad is used, from the first backward to add_shared_gradient()
};

}  // namespace mcpp
