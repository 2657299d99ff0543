// GPT-2 and Llama style decoders composed of common modules: a full model, or the part in one pipeline stage. A model
// is a sequence of units in forward order: word embeddings, learned positions, layers (or groups of recomputed layers),
// final norm, output matrix, and with multi-token prediction the output stage's copy of the word embeddings and its
// layers. Data parallelism gathers and reduces parameters by unit.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "model/layers/attention.h"
#include "model/layers/embedding.h"
#include "model/layers/moe/router.h"
#include "model/layers/output_layer.h"
#include "model/multi_token_prediction.h"
#include "nn/module.h"
#include "parallel/dp/zero.h"
#include "parallel/stages.h"

namespace mcpp {

class GPTModel {
 public:
  /// Builds the full model.
  explicit GPTModel(ModelContext context);
  /// Builds one pipeline stage. If the word embeddings are tied to the output matrix of this stage and are on this
  /// rank, `embedding_stage` is the stage that has them, and this stage has no separate parameter for its output
  /// matrix. Otherwise `embedding_stage` is nullptr.
  GPTModel(ModelContext context, const StageContents& stage, GPTModel* embedding_stage);
  GPTModel(const GPTModel&) = delete;  // not copyable: modules refer to the context of the model
  GPTModel& operator=(const GPTModel&) = delete;

  const ModelContext& context() const { return context_; }
  const StageContents& stage() const { return stage_; }
  /// Calls f on every parameter with its unit, in a fixed order. Units are numbered over the full sequence, including
  /// those without parameters on this rank.
  void visit(const std::function<void(Param&, int unit)>& f);
  /// Router of a layer with experts in this stage, in layer order, including layers of multi-token prediction.
  struct LayerRouter {
    i64 layer;
    Router* router;
  };
  std::span<const LayerRouter> routers() const { return routers_; }
  /// Throws, naming the modules, if a module does not accept the tensor-parallel placement of its input, or if a
  /// parameter's placement does not match its use. The constructor calls it.
  void check_placements();
  /// Callback for the output of each layer in forward passes or, for a recomputed group, of its last layer. May be
  /// null.
  using LayerObserver = std::function<void(i64 layer, const Tensor& y)>;
  void observe_layers(LayerObserver observer) { observer_ = std::move(observer); }
  /// Sets the parameter buffers, which are notified before and after each use of a unit.
  void set_memory(ChunkParamBuffers& memory) { memory_ = &memory; }

  /// Runs forward. `input`: tokens int32 [s, b] in the stage with the embedding, otherwise hidden states [s, b, h] ([s
  /// / tp, b, h] with sequence parallelism). Returns hidden states. Saves tensors for backward(). The results of an
  /// aborted pass are undefined, also in the functions below.
  Tensor forward(const Tensor& input, MicrobatchContext& microbatch);
  /// Tokens to predict, in the same rows as the microbatch's tokens.
  struct Targets {
    const Tensor& next;                         ///< int32 [s, b]; negative = ignored
    std::span<const FutureTokens> future = {};  ///< for each layer of multi-token prediction; read only in training
  };
  struct Losses {
    TokenLosses next;
    std::vector<TokenLosses> future = {};  ///< losses of each layer of multi-token prediction; empty without backward
  };
  /// Computes the losses in a stage with the output. `grad_scale` multiplies the gradient, not the returned losses.
  Losses loss(const Tensor& input, const Targets& targets, double grad_scale, MicrobatchContext& microbatch);
  /// Returns logits [s * b, padded vocabulary / tp], for generation and tests.
  Tensor logits(const Tensor& input, MicrobatchContext& microbatch);

  /// Accumulates the gradient of (sum of losses x grad_scale) into the main gradients. `dy`: gradient of forward's
  /// result, undefined after loss(). Returns the gradient of the input, undefined for tokens.
  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch);
  /// Starts the data-parallel reduction of units whose weight gradients were delayed. Call when all weight gradients of
  /// the step are computed.
  void release_gradients();
  /// Adds the gradient of the word embeddings from the output of this stage to the gradient in a different stage on
  /// this rank. Call once per step, after release_gradients() of both stages and before finish() of their buffers.
  void add_shared_gradient();

 private:
  int norm_unit() const { return kFirstLayerUnit + static_cast<int>(layers_.size()); }
  int output_unit() const { return norm_unit() + 1; }
  int future_embedding_unit() const { return norm_unit() + 2; }
  int units() const { return output_unit() + 1 + (future_ ? 1 + static_cast<int>(future_->layers().size()) : 0); }
  /// Returns the last unit that a pass with the output uses. Inference does not use multi-token prediction.
  int last_unit(const MicrobatchContext& microbatch) const;
  bool ties_embeddings() const;
  /// Returns true if this stage has the embedding and the output, which uses the word embeddings.
  bool output_uses_own_embedding() const;
  /// Returns true if a different chunk, on this or another rank, contributes to the gradient of the unit after
  /// backward. This is the case for word embeddings that are used by the embedding and the output of different stages.
  bool has_pending_contribution(int unit) const;

  void make_layers();
  Tensor forward_hidden(const Tensor& input, MicrobatchContext& microbatch);
  Losses output_losses(const Tensor& hidden, const Targets& targets, double grad_scale, MicrobatchContext& microbatch);
  Tensor backward_output(MicrobatchContext& microbatch);
  void backward_embedding(const Tensor& dy, MicrobatchContext& microbatch);
  void acquire(int unit, Use use);
  void release(int unit, Use use, bool is_last);
  template <class F>
  auto run_with_units(int first, int last, Use use, const MicrobatchContext& microbatch, F&& f);
  template <class F>
  auto run_with_output(const Tensor& input, MicrobatchContext& microbatch, F&& f);

  /// Number of units before the first layer: word embeddings and positions.
  static constexpr int kFirstLayerUnit = 2;

  ModelContext context_;
  StageContents stage_;
  RotaryTable rotary_;
  std::unique_ptr<LanguageModelEmbedding> embedding_;
  std::vector<std::unique_ptr<Module>> layers_;
  std::vector<i64> last_layer_indices_;  // global index of each layer, or of the last one of a recomputed group
  LayerObserver observer_;
  std::vector<LayerRouter> routers_;  // routers of layers_
  std::unique_ptr<OutputLayer> output_;
  std::unique_ptr<MultiTokenPrediction> future_;  // null in stages without multi-token prediction
  ChunkParamBuffers* memory_ = nullptr;
  bool are_gradients_released_ = false;  // set by backward of the step's last microbatch
};

/// Builds the chunks of a pipeline rank, in the order of `stages`. The first chunk must outlive the others.
std::vector<std::unique_ptr<GPTModel>> make_chunks(const ModelContext& context,
                                                   const std::vector<StageContents>& stages);

}  // namespace mcpp
