// End of the model: final norm, logits over the vocabulary, with a soft cap if the model has one, and the loss.
#pragma once
#include <string>

#include "base/stored_ref.h"
#include "model/layers/norm.h"
#include "parallel/tp/mappings.h"
#include "parallel/tp/vocab_parallel.h"

namespace mcpp {

/// Matrix [padded vocabulary, h] used by the stage with the output, sharded by vocabulary rows. It is one of three
/// parameters: one of its own; the word embeddings' weight, shared with the embedding on the same rank; or the word
/// embeddings' weight while the embedding is in a different pipeline stage, a separate parameter with the same name,
/// box and initial values. The gradients of the last two are summed between the stages.
class VocabMatrix {
 public:
  /// `shared`: the word embeddings' weight if this matrix is that one and both are on this rank, otherwise nullptr.
  VocabMatrix(const std::string& name, StoredRef<ModelContext> context, Param* shared);

  const Tensor& value() const { return shared_ ? shared_->value : weight_.value; }
  /// Returns this rank's rows of the matrix.
  const Box& box() const { return weight_.box; }
  const std::string& name() const { return weight_.name; }
  /// Accumulates a gradient like Param::add_grad(). That of a shared weight is kept separately until
  /// add_shared_gradient().
  template <class F>
  void add_grad(F&& f) {
    if (shared_ && !weight_.main_grad.defined()) allocate_gradient();
    weight_.add_grad(std::forward<F>(f));
  }
  /// Adds the separate gradient to that of the shared weight. The sum over microbatches is therefore (the embedding's)
  /// + (the output stage's), bitwise identical to weights in different pipeline stages. No-op if the weight is not
  /// shared.
  void add_shared_gradient();
  /// Calls f on the parameter unless it is shared.
  void visit(const ParamVisitor& f);
  /// Returns nullptr if the weight is shared.
  Param* own_weight() { return shared_ ? nullptr : &weight_; }

 private:
  void allocate_gradient();

  Param* shared_;
  Param weight_;  // if shared, only its main_grad is used, from the first backward to add_shared_gradient()
};

/// Final norm, output matrix and loss.
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

  // The two parts of loss() and backward(). Multi-token prediction reads the result of the norm, and has losses of its
  // own with the same output matrix.

  Tensor normalize(const Tensor& hidden, MicrobatchContext& microbatch);
  TokenLosses loss_of_normalized(const Tensor& normalized, const Tensor& targets, double grad_scale,
                                 MicrobatchContext& microbatch);
  /// Returns the gradient with respect to `normalized`.
  Tensor backward_to_normalized(MicrobatchContext& microbatch);
  Tensor normalize_backward(const Tensor& d_normalized, MicrobatchContext& microbatch);

  /// Returns the placement of the logits, like Module::output_placement().
  ActivationPlacement output_placement(ActivationPlacement hidden) const;
  VocabMatrix& weight() { return weight_; }

  void visit(const ParamVisitor& f);
  void visit_norm(const ParamVisitor& f) { final_layernorm_.visit(f); }
  void visit_weight(const ParamVisitor& f) { weight_.visit(f); }

 private:
  Tensor logits_of_normalized(const Tensor& normalized, MicrobatchContext& microbatch);
  void weight_gradient(const Tensor& d_logits, const Tensor& normalized);

  const ModelContext& context_;
  TensorParallelRegion region_;
  Norm final_layernorm_;
  VocabMatrix weight_;
};

}  // namespace mcpp
