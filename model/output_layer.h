// The end of the model: final norm, logits over the vocabulary, and the loss.
#pragma once
#include <memory>

#include "model/norm.h"
#include "parallel/tp/cross_entropy.h"

namespace mcpp {

class OutputLayer {
 public:
  /// `tied` is the word embeddings' weight, or null when the output layer has its own.
  OutputLayer(const ModelContext& context, Param* tied);

  /// hidden [s, b, h] -> logits [s * b, padded vocabulary / tp].
  Tensor logits(const Tensor& hidden, Pass& pass);
  /// Loss of the microbatch; targets int32 [s, b], negative = not counted. When backward will come, saves the gradient
  /// of (sum of the losses x loss_scale) with respect to the logits, computed in place of the logits.
  TokenLosses loss(const Tensor& hidden, const Tensor& targets, double loss_scale, Pass& pass);
  /// The gradient with respect to hidden.
  Tensor backward(Pass& pass);
  void visit(const ParamVisitor& f);

 private:
  Param& weight() { return own_weight_ ? *own_weight_ : *tied_; }

  const ModelContext& context_;
  Norm final_layernorm_;
  std::unique_ptr<Param> own_weight_;
  Param* tied_;
};

}  // namespace mcpp
