// The end of the model: final norm, logits over the vocabulary, with a soft cap where the model has one, and the loss.
#pragma once
#include "base/kept_ref.h"
#include "model/layers/norm.h"
#include "parallel/tp/cross_entropy.h"
#include "parallel/tp/mappings.h"

namespace mcpp {

/// Its weight is one of three: "output_layer.weight" of its own; the word embeddings' weight, shared with the embedding
/// beside it; or, tied to an embedding on another pipeline stage, a parameter of its own with the name, box and initial
/// numbers of that one, whose gradient is summed with it between the stages.
class OutputLayer {
 public:
  /// `shared`: the word embeddings' weight when embeddings are tied and both are on this rank, else null.
  OutputLayer(KeptRef<ModelContext> context, Param* shared);

  /// hidden [s, b, h] (sequence parallel: [s / tp, b, h]) -> logits [s * b, padded vocabulary / tp].
  Tensor logits(const Tensor& hidden, Pass& pass);
  /// Loss of the microbatch; targets int32 [s, b], negative = not counted. When backward will come, saves the gradient
  /// of (sum of the losses x grad_scale) with respect to the logits, computed in place of the logits.
  TokenLosses loss(const Tensor& hidden, const Tensor& targets, double grad_scale, Pass& pass);
  /// The gradient with respect to hidden.
  Tensor backward(Pass& pass);
  /// Of the logits, as Module::gives().
  ActivationPlacement gives(ActivationPlacement hidden) const;

  /// Adds what backward made of the shared weight's gradient, kept apart until now, to that weight's main_grad. So the
  /// sum over microbatches is (the embedding's) + (the output's), the same bits as between pipeline stages. Does
  /// nothing where the weight is its own.
  void add_shared_gradient();

  void visit(const ParamVisitor& f);
  void visit_norm(const ParamVisitor& f) { final_layernorm_.visit(f); }
  void visit_weight(const ParamVisitor& f);
  /// Null where it is shared.
  Param* own_weight() { return shared_ ? nullptr : &weight_; }

 private:
  const Tensor& weight() const { return shared_ ? shared_->value : weight_.value; }
  void weight_gradient(const Tensor& d_logits, const Tensor& normalized);

  const ModelContext& context_;
  TensorParallelRegion region_;
  Norm final_layernorm_;
  Param* shared_;
  Param weight_;  // when shared, only its main_grad is used, from the first backward to add_shared_gradient()
};

}  // namespace mcpp
