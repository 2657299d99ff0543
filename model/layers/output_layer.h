// Output layer: logits over the vocabulary with an optional factor and soft cap, and the loss.
#pragma once
#include <string>

#include "base/stored_ref.h"
#include "model/config/context.h"
#include "parallel/tp/fp8_scaling.h"
#include "parallel/tp/mappings.h"
#include "parallel/tp/vocab_parallel.h"

namespace mcpp {

/// Matrix [padded vocabulary, h] used by the last stages, sharded by vocabulary rows. There are three cases:
/// - the output matrix with untied embeddings: a separate parameter;
/// - the word embeddings, with the embedding on the same rank: the weight of the embedding itself;
/// - the word embeddings, with the embedding on a different rank: a copy of that weight with the same name, box and
///   initial values.
/// In the last two cases, the gradients of both stages are summed.
class VocabMatrix {
 public:
  /// `shared` is the weight of the word embeddings if this matrix must equal it and the embedding layer is on this
  /// rank, otherwise nullptr.
  VocabMatrix(const std::string& name, StoredRef<ModelContext> context, Param* shared);

  const Tensor& value() const { return shared_ ? shared_->value : weight_.value; }
  /// Returns this rank's rows of the matrix.
  const Box& box() const { return weight_.box; }
  const std::string& name() const { return weight_.name; }
  /// Accumulates a gradient like Param::add_grad(). For a shared weight, stores it separately until
  /// add_shared_gradient().
  template <class F>
  void add_grad(F&& f) {
    if (shared_ && !weight_.main_grad.defined()) allocate_gradient();
    weight_.add_grad(std::forward<F>(f));
  }
  /// Adds the separate gradient to the gradient of the shared weight. The order of summation is thus the same as for
  /// stages on different ranks: first over microbatches within each stage, then over stages. No-op if the weight is not
  /// shared.
  void add_shared_gradient();
  /// Calls f on the parameter unless it is shared.
  void visit(const ParamVisitor& f);
  /// Calls f on the parameter that add_grad() adds to.
  void visit_gradient(const ParamVisitor& f) { f(weight_); }
  /// Returns the parameter of this matrix, or nullptr if it is shared.
  Param* own_weight() { return shared_ ? nullptr : &weight_; }

 private:
  void allocate_gradient();

  Param* shared_;
  /// If the weight is shared, only main_grad is used. It exists from the first backward to add_shared_gradient() or, if
  /// recorded passes keep its address, for the rest of the run.
  Param weight_;
  bool keeps_gradient_;
};

/// Output matrix and loss, in low precision if a recipe names "output_layer". Reads the result of the final norm or of
/// a layer of multi-token prediction.
class OutputLayer {
 public:
  /// `shared` is passed to VocabMatrix.
  OutputLayer(StoredRef<ModelContext> context, Param* shared);

  /// Returns the logits [s * b, padded vocabulary / tp] of hidden [s, b, h] (sequence parallel: [s / tp, b, h]).
  Tensor logits(const Tensor& hidden, MicrobatchContext& microbatch);
  /// Returns the logits [n, padded vocabulary / tp] of some rows of the full hidden states [s * b, h]. `rows` is int32
  /// [n]. Only for passes without backward.
  Tensor logits_of_rows(const Tensor& hidden, const Tensor& rows, MicrobatchContext& microbatch);
  /// Returns the loss of the microbatch. `targets` is int32 [s, b]; negative targets have no loss. In training, saves
  /// the gradient of grad_scale times the sum of losses, including the z-loss with weight `z_loss_coeff`, with respect
  /// to the logits.
  TokenLosses loss(const Tensor& hidden, const Tensor& targets, double grad_scale, double z_loss_coeff,
                   MicrobatchContext& microbatch);
  /// Returns the gradient of the last `hidden` whose backward pass has not run yet.
  Tensor backward(MicrobatchContext& microbatch);

  /// Returns the placement of the logits, like Module::output_placement().
  ActivationPlacement output_placement(ActivationPlacement hidden) const;
  VocabMatrix& weight() { return weight_; }
  void visit(const ParamVisitor& f) { weight_.visit(f); }

 private:
  /// Returns the hidden states times ModelConfig::logit_scale(), which may be `hidden` itself.
  Tensor scaled(const Tensor& hidden) const;
  void soft_cap(Tensor& logits) const;
  /// Returns the columns of the logits of this rank.
  OutputColumns columns() const;
  /// `input` is the hidden states times ModelConfig::logit_scale().
  void weight_gradient(const Tensor& d_logits, const Tensor& input, const LinearScales& scales);

  const ModelContext& context_;
  TensorParallelRegion region_;
  Fp8Scaling fp8_;
  VocabMatrix weight_;
};

}  // namespace mcpp
