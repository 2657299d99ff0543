// Decoder-only language model: the full model, or one of its pipeline stages. Data parallelism gathers and reduces
// parameters by unit. The units of a model, in forward order, are the word embeddings, learned positions, each layer
// (or group of layers that are recomputed together), the final norm and the output matrix. Multi-token prediction adds
// its copy of the word embeddings and one unit per layer.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "model/layers/attention.h"
#include "model/layers/embedding.h"
#include "model/layers/moe/router.h"
#include "model/layers/norm.h"
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
  /// Builds one pipeline stage. `embedding_stage` is an earlier stage on this rank that has the word embeddings, which
  /// this stage uses instead of a separate parameter for tied embeddings or multi-token prediction. nullptr if there is
  /// none.
  GPTModel(ModelContext context, const StageContents& stage, GPTModel* embedding_stage);
  GPTModel(const GPTModel&) = delete;  // not copyable: modules refer to the context of the model
  GPTModel& operator=(const GPTModel&) = delete;

  const ModelContext& context() const { return context_; }
  const StageContents& stage() const { return stage_; }
  /// Calls f on every parameter with its unit, in a fixed order. Units without parameters on this rank are numbered
  /// too.
  void visit(const std::function<void(Param&, int unit)>& f);
  /// Router of a layer with experts.
  struct LayerRouter {
    i64 layer;
    Router* router;
  };
  /// Returns the routers of this stage in layer order, including layers of multi-token prediction.
  std::span<const LayerRouter> routers() const { return routers_; }
  /// Attention of a layer.
  struct LayerAttention {
    i64 layer;
    Branch* attention;
  };
  /// Returns the attention of this stage's layers in layer order, including layers of multi-token prediction.
  std::span<const LayerAttention> attentions() const { return attentions_; }
  /// Throws, naming the modules, if a module does not accept the tensor-parallel placement of its input, or if a
  /// parameter's placement does not match its use. The constructor calls it.
  void check_placements();
  /// Callback for the output y of each layer in forward passes. For a group of layers that are recomputed together, it
  /// is called for the last layer only. May be null.
  using LayerObserver = std::function<void(i64 layer, const Tensor& y)>;
  void observe_layers(LayerObserver observer) { observer_ = std::move(observer); }
  bool is_observed() const { return observer_ != nullptr; }
  /// Sets the parameter buffers, which are notified before and after each use of a unit.
  void set_memory(ChunkParamBuffers& memory) { memory_ = &memory; }

  /// Returns the hidden states after the last layer of this stage, [s, b, h] ([s / tp, b, h] with sequence
  /// parallelism). A stage with the final norm but without the output layer returns the states that the output layer
  /// reads, concatenated along the first axis: the result of the norm and, in training, of each layer of multi-token
  /// prediction, which read `future`. `input` is int32 tokens [s, b] in the stage with the embedding, otherwise the
  /// result of the previous stage. Saves tensors for backward(). The results of an aborted pass are undefined, here and
  /// in the following functions.
  Tensor forward(const Tensor& input, MicrobatchContext& microbatch, std::span<const FutureTokens> future = {});
  /// Tokens to predict. Rows correspond to the rows of the microbatch's tokens.
  struct Targets {
    const Tensor& next;                         ///< int32 [s, b]; negative: no loss
    std::span<const FutureTokens> future = {};  ///< one per layer of multi-token prediction; used only in training
  };
  struct Losses {
    TokenLosses next;
    std::vector<TokenLosses> future = {};  ///< losses of each layer of multi-token prediction; empty without backward
  };
  /// Returns the losses of the microbatch, in the stage with the output layer. `input` is as in forward(). `grad_scale`
  /// multiplies only the gradient.
  Losses loss(const Tensor& input, const Targets& targets, double grad_scale, MicrobatchContext& microbatch);
  /// Returns the logits [s * b, padded vocabulary / tp].
  Tensor logits(const Tensor& input, MicrobatchContext& microbatch);
  /// Returns the logits [n, padded vocabulary / tp] of rows of the microbatch, int32 [n], without computing the others.
  /// Only for passes without backward.
  Tensor logits_of_rows(const Tensor& input, const Tensor& rows, MicrobatchContext& microbatch);

  /// Adds the gradient of grad_scale times the sum of losses to the main gradients, and returns the gradient of
  /// `input`. `dy` is the gradient of the result of forward(), or undefined after loss(). The result is undefined if
  /// `input` was tokens.
  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch);
  /// Starts the data-parallel reduction of units whose weight gradients were delayed. Call it after all weight
  /// gradients of the step have been computed.
  void release_gradients();
  /// Waits until the weights of all units are available, so that the next pass need not wait. Only for parameters that
  /// are not sharded.
  void wait_for_weights();
  /// Calls f on every parameter whose gradient is written by passes: the parameters of visit(), and the separate
  /// gradients of word embeddings that the output or multi-token prediction share.
  void visit_gradients(const ParamVisitor& f);
  /// Adds this stage's gradient of the word embeddings to the gradient of the `embedding_stage` passed to the
  /// constructor. Call it once per step, after release_gradients() of both stages and before finish() of their buffers.
  void add_shared_gradient();

 private:
  Tensor final_norm(const Tensor& x, MicrobatchContext& microbatch);
  int norm_unit() const { return kFirstLayerUnit + static_cast<int>(layers_.size()); }
  int output_unit() const { return norm_unit() + 1; }
  int mtp_embedding_unit() const { return norm_unit() + 2; }
  int units() const { return output_unit() + 1 + (mtp_ ? 1 + static_cast<int>(mtp_->layers().size()) : 0); }
  /// Returns the last unit that a pass through the output uses. Only training uses the units of multi-token prediction.
  int last_unit(const MicrobatchContext& microbatch) const;
  bool ties_embeddings() const;
  /// Returns true if the output layer or multi-token prediction of this stage use the word embeddings.
  bool output_uses_embedding() const;
  /// Returns true if output_uses_embedding() and the embedding is in this stage too.
  bool output_uses_own_embedding() const { return embedding_ && output_uses_embedding(); }
  /// Returns true if a different chunk, on this or another rank, adds to the gradient of the unit after backward. This
  /// is the case for word embeddings that are used in two stages.
  bool has_pending_contribution(int unit) const;

  void make_layers();
  void add_parts(i64 layer, Router* router, Branch* attention);
  void make_output(GPTModel* embedding_stage);
  Tensor forward_hidden(const Tensor& input, MicrobatchContext& microbatch);
  /// Returns the number of states that the output layer reads.
  std::size_t num_predictions(const MicrobatchContext& microbatch) const;
  /// Returns the states that the output layer reads. `hidden` is the result of the last layer or, in a stage without
  /// the final norm, of the previous stage.
  std::vector<Tensor> predictions(const Tensor& hidden, std::span<const FutureTokens> future,
                                  MicrobatchContext& microbatch);
  Losses output_losses(const Tensor& hidden, const Targets& targets, double grad_scale, MicrobatchContext& microbatch);
  Tensor backward_output(const Tensor& dy, MicrobatchContext& microbatch);
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
  std::vector<i64> last_layer_indices_;  // global index of the last layer in each element of layers_
  LayerObserver observer_;
  std::vector<LayerRouter> routers_;        // routers of layers_
  std::vector<LayerAttention> attentions_;  // attention of layers_
  std::unique_ptr<Norm> final_layernorm_;
  std::unique_ptr<OutputLayer> output_;
  std::unique_ptr<MultiTokenPrediction> mtp_;  // nullptr in stages without multi-token prediction
  ChunkParamBuffers* memory_ = nullptr;
  bool are_gradients_released_ = false;  // set by backward of the step's last microbatch
};

/// Builds the chunks of a pipeline rank, in the order of `stages`. The first chunk must outlive the others.
std::vector<std::unique_ptr<GPTModel>> make_chunks(const ModelContext& context,
                                                   const std::vector<StageContents>& stages);

}  // namespace mcpp
