// Vocabulary-parallel embedding and cross entropy.
#pragma once
#include <string>

#include "comm/communicator.h"
#include "nn/module.h"
#include "parallel/tp/mappings.h"
#include "tensor/tensor.h"

namespace mcpp {

// Word embedding sharded by vocabulary rows over the tensor-parallel group.

/// Vocabulary-parallel embedding. forward() maps tokens, int32 [s, b], to [s, b, h] (sequence parallel: this rank's
/// part, [s / tp, b, h]): each rank looks up the tokens in its rows, and the results are summed over the group.
/// backward() scatters dy into this rank's rows and returns an undefined tensor, because tokens have no gradient.
class VocabParallelEmbedding final : public Module {
 public:
  VocabParallelEmbedding(const std::string& name, i64 padded_vocab_size, i64 hidden_size, Communicator& tp,
                         double init_std, bool sequence_parallel = false);

  Tensor forward(const Tensor& tokens, MicrobatchContext& context) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& context) override;
  ActivationPlacement output_placement(ActivationPlacement tokens) const override;
  void visit(const ParamVisitor& f) override { f(weight_); }
  /// Returns the weight, which the output layer shares if embeddings are tied.
  Param& weight() { return weight_; }

 private:
  TensorParallelRegion region_;
  Param weight_;
};

// Cross entropy over a vocabulary sharded over the tensor-parallel group (Shoeybi et al. 2019, section 3): only three
// values per token are communicated, not the logits.

/// Per-token losses and their sum, kept on the device so that the host does not wait.
struct TokenLosses {
  Tensor per_token;  ///< [T] fp32 (fp64): -log p(target); 0 without a target
  Tensor totals;     ///< fp64 [2]: sum of losses, in token order on a CPU, and number of targets
  Tensor z_loss;     ///< fp64 [1]: sum of the z-losses of tokens with a target; undefined without z-loss

  double sum() const;  ///< synchronizes
  i64 tokens() const;  ///< synchronizes
};

/// Factor of the gradient of a loss: `value` times `factor`, fp64 [1], which the op reads when it runs; undefined = 1.
struct LossGradScale {
  double value = 0;
  Tensor factor = {};
};

/// Computes the losses of logits [T, V / tp], whose columns start at row `first_row` of the padded vocabulary; only the
/// first `vocab_size` rows of the vocabulary are valid. Targets are int32 [T], negative = none. If grad_scale.value is
/// not 0, the logits are overwritten by their gradient times grad_scale; if `soft_cap` is also not 0, by the gradient
/// of the input of ops::soft_cap() instead. If `z_loss_coeff` is not 0, the gradient, but not the loss, includes the
/// z-loss (ops::z_loss()).
TokenLosses vocab_parallel_cross_entropy(Tensor& logits, const Tensor& targets, i64 first_row, i64 vocab_size,
                                         const LossGradScale& grad_scale, Communicator& tp, double soft_cap = 0,
                                         double z_loss_coeff = 0);

}  // namespace mcpp
