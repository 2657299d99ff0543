// Multi-token prediction (DeepSeek-AI, "DeepSeek-V3", 2024, section 2.2; Gloeckle et al. 2024): in training, layer k =
// 1, 2, ... predicts token i + k + 1 at position i, from the embedding of token i + k and the hidden state of layer k -
// 1. Layer 1 reads the output of the model's final norm. All layers share the model's word embeddings and output
// matrix.
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

/// Inputs and targets of one layer of multi-token prediction. Both are int32 [s, b], with the rows of the microbatch's
/// tokens.
struct FutureTokens {
  Tensor tokens;   ///< token i + k at position i; any valid token past the end of the sample
  Tensor targets;  ///< token i + k + 1 at position i; negative: no loss
};

/// One layer of multi-token prediction: y = final_norm(layer(eh_proj [enorm(embedding); hnorm(hidden)])).
class MtpLayer {
 public:
  /// Creates layer k = index + 1.
  MtpLayer(i64 index, StoredRef<ModelContext> context, RotaryTable& rotary);

  /// Inputs of a layer, or their gradients. Like the result of forward(), each is [s, b, h] (sequence parallel: [s /
  /// tp, b, h]).
  struct Input {
    Tensor embedding, hidden;
  };
  Tensor forward(const Input& x, MicrobatchContext& microbatch);
  /// Returns the gradients of both inputs. May overwrite dy.
  Input backward(const Tensor& dy, MicrobatchContext& microbatch);
  /// Throws like Module::output_placement().
  void check_placement(ActivationPlacement x) const;
  void visit(const ParamVisitor& f);
  /// Returns the router of the layer's experts, or nullptr without experts.
  Router* router() { return router_; }
  /// Returns the attention of the layer, or nullptr if it has no attention with a softmax.
  Branch* attention() { return attention_; }

 private:
  /// Returns this rank's shard of the sequence of x [s, b, h].
  Tensor own_rows(const Tensor& x) const;

  const ModelContext& context_;
  Norm enorm_, hnorm_;
  TensorParallelRegion region_;
  ColumnParallelLinear eh_proj_;  // gathers its output
  Router* router_ = nullptr;
  Branch* attention_ = nullptr;
  std::unique_ptr<Module> layer_;
  Norm final_layernorm_;
};

/// All layers of multi-token prediction of a model, on the pipeline stage with the final norm. Only training uses them.
class MultiTokenPrediction {
 public:
  /// `tied_output`: the output matrix if it is also the word embeddings, otherwise nullptr. `shared_embedding`: the
  /// word embeddings' weight if it is on this rank, otherwise nullptr.
  MultiTokenPrediction(StoredRef<ModelContext> context, RotaryTable& rotary, VocabMatrix* tied_output,
                       Param* shared_embedding);

  /// Returns the hidden states that the output layer reads: `hidden`, the result of the final norm, followed by the
  /// result of each layer. `future` has one element per layer.
  std::vector<Tensor> forward(const Tensor& hidden, std::span<const FutureTokens> future,
                              MicrobatchContext& microbatch);
  /// Returns the gradient of `hidden`. `dy` has the gradients of the results of forward(), and may be overwritten.
  Tensor backward(std::vector<Tensor> dy, MicrobatchContext& microbatch);
  /// Throws like Module::output_placement().
  void check_placement(ActivationPlacement hidden) const;
  std::span<const std::unique_ptr<MtpLayer>> layers() const { return layers_; }
  /// Calls f on this stage's copy of the word embeddings. It has none if the embeddings are tied or this rank has the
  /// first stage.
  void visit_embedding(const ParamVisitor& f);
  /// Calls f on the parameter with the gradient of this stage's embedding of tokens, unless that is the output matrix.
  void visit_embedding_gradient(const ParamVisitor& f) {
    if (embedding_) embedding_->visit_gradient(f);
  }
  /// Adds the gradient of the word embeddings to the gradient of the first stage, if this rank has that stage
  /// (VocabMatrix).
  void add_shared_gradient();

 private:
  VocabMatrix& embedding() { return embedding_ ? *embedding_ : *tied_output_; }
  Tensor embed(const Tensor& tokens, MicrobatchContext& microbatch);
  void embed_backward(const Tensor& dy, MicrobatchContext& microbatch);

  const ModelContext& context_;
  TensorParallelRegion region_;
  VocabMatrix* tied_output_;
  std::unique_ptr<VocabMatrix> embedding_;  // nullptr with tied embeddings
  std::vector<std::unique_ptr<MtpLayer>> layers_;
};

}  // namespace mcpp
