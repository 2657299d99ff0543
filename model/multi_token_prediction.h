// Multi-token prediction (DeepSeek-AI, "DeepSeek-V3", 2024, section 2.2; Gloeckle et al. 2024): in training, layer k
// predicts at position i the token i + k + 1 from the hidden state of layer k - 1 (of the model's final norm for k = 1)
// and the embedding of token i + k. All layers share the word embeddings and the output matrix with the model.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/stored_ref.h"
#include "model/layers/attention.h"
#include "model/layers/moe/router.h"
#include "model/layers/norm.h"
#include "model/layers/output_layer.h"
#include "nn/module.h"
#include "parallel/tp/linear.h"

namespace mcpp {

/// Tokens that one layer of multi-token prediction reads and predicts. Both are int32 [s, b], in the same rows as the
/// microbatch's tokens.
struct FutureTokens {
  Tensor tokens;   ///< token i + k at position i; any valid token if there is none
  Tensor targets;  ///< token i + k + 1 at position i; negative = ignored
};

/// One layer: final_norm(layer(eh_proj [enorm(embedding); hnorm(hidden)])).
class MtpLayer {
 public:
  /// `index` starts at 0.
  MtpLayer(i64 index, StoredRef<ModelContext> context, RotaryTable& rotary);

  /// Inputs of a layer, or their gradients: [s, b, h] (sequence parallel: [s / tp, b, h]), like the result.
  struct Input {
    Tensor embedding, hidden;
  };
  Tensor forward(const Input& x, MicrobatchContext& microbatch);
  /// May reuse dy's memory.
  Input backward(const Tensor& dy, MicrobatchContext& microbatch);
  /// Throws like Module::output_placement().
  void check_placement(ActivationPlacement x) const;
  void visit(const ParamVisitor& f);
  /// Returns nullptr in a layer without experts.
  Router* router() { return router_; }

 private:
  /// Returns this rank's shard of the sequence of x [s, b, h].
  Tensor own_rows(const Tensor& x) const;

  const ModelContext& context_;
  Norm enorm_, hnorm_;
  TensorParallelRegion region_;
  ColumnParallelLinear eh_proj_;  // the output is gathered
  Router* router_ = nullptr;
  std::unique_ptr<Module> layer_;
  Norm final_layernorm_;
};

/// All layers of a model, on the stage with the output. Evaluation and generation do not use them.
class MultiTokenPrediction {
 public:
  /// `shared_embedding`: the word embeddings' weight if it is on this rank, otherwise nullptr. Keeps a reference to
  /// `output`, which with tied embeddings also holds the word embeddings.
  MultiTokenPrediction(StoredRef<ModelContext> context, RotaryTable& rotary, OutputLayer& output,
                       Param* shared_embedding);

  /// Returns the losses of each layer. `hidden`: result of OutputLayer::normalize(). `grad_scale` is that of the
  /// model's loss; the gradient of each layer's loss is also multiplied by mtp_loss_scaling_factor / mtp_num_layers.
  std::vector<TokenLosses> loss(const Tensor& hidden, std::span<const FutureTokens> future, double grad_scale,
                                MicrobatchContext& microbatch);
  /// Returns the gradient with respect to `hidden`.
  Tensor backward(MicrobatchContext& microbatch);
  /// Throws like Module::output_placement().
  void check_placement(ActivationPlacement hidden) const;
  std::span<const std::unique_ptr<MtpLayer>> layers() const { return layers_; }
  /// Calls f on the word embeddings' weight, if it is neither on this rank nor the output matrix.
  void visit_embedding(const ParamVisitor& f);
  void add_shared_gradient();

 private:
  VocabMatrix& embedding() { return embedding_ ? *embedding_ : output_.weight(); }
  Tensor embed(const Tensor& tokens, MicrobatchContext& microbatch);
  void embed_backward(const Tensor& dy, MicrobatchContext& microbatch);

  const ModelContext& context_;
  TensorParallelRegion region_;
  OutputLayer& output_;
  std::unique_ptr<VocabMatrix> embedding_;  // null with tied embeddings
  std::vector<std::unique_ptr<MtpLayer>> layers_;
};

}  // namespace mcpp
