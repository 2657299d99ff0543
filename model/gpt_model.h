// GPT-2 and Llama style decoders, from one set of modules: a whole model, or the part of one that a pipeline stage
// holds. It is a row of units, in the order in which forward visits them: the word embeddings, learned positions, the
// layers (or groups of recomputed layers), the last norm, and the output matrix. Units are what data-parallel sharding
// gathers and reduces.
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
#include "nn/module.h"
#include "parallel/dp/model_memory.h"
#include "parallel/pp/stages.h"

namespace mcpp {

class GPTModel {
 public:
  /// The whole model.
  explicit GPTModel(ModelContext context);
  /// One stage of it. `embedding_stage`: the stage with the word embeddings where this rank holds that too and they are
  /// tied to the output matrix of this stage, which then is no matrix of its own; it must outlive this.
  GPTModel(ModelContext context, const StageContents& stage, GPTModel* embedding_stage);
  GPTModel(const GPTModel&) = delete;  // its modules refer to its context
  GPTModel& operator=(const GPTModel&) = delete;

  const ModelContext& context() const { return context_; }
  const StageContents& stage() const { return stage_; }
  /// Every parameter with its unit, in a fixed order. Units without parameters here have a number too.
  void visit(const std::function<void(Param&, int unit)>& f);
  /// Those of the stage's layers with experts, in order.
  struct LayerRouter {
    i64 layer;
    Router* router;
  };
  std::span<const LayerRouter> routers() const { return routers_; }
  /// Refuses, by name, modules that do not take what those before them give over the tensor-parallel ranks, and
  /// parameters that are not placed as they are held and used. Asked by the constructor.
  void check_placements();
  /// Called in forward passes with what each layer returns, of recomputed groups the last one; null: nobody.
  using LayerObserver = std::function<void(i64 layer, const Tensor& y)>;
  void observe_layers(LayerObserver observer) { observer_ = std::move(observer); }
  /// The parameters' memory, told before and after each use of a unit. Must outlive the model's last use.
  void set_memory(ModelMemory& memory) { memory_ = &memory; }

  /// `input`: tokens int32 [s, b] where the stage has the embedding, otherwise hidden states [s, b, h] ([s / tp, b, h]
  /// with sequence parallelism), as are those returned. Saves what backward(pass) needs. Of a pass that was given up
  /// these and the following return nothing of use.
  Tensor forward(const Tensor& input, Pass& pass);
  /// For a stage with the output. targets int32 [s, b]; `grad_scale` multiplies the gradient, not the returned losses.
  TokenLosses loss(const Tensor& input, const Tensor& targets, double grad_scale, Pass& pass);
  /// logits [s * b, padded vocabulary / tp], for generation and tests.
  Tensor logits(const Tensor& input, Pass& pass);

  /// Adds the gradient of (sum of losses x grad_scale) to the main gradients; `dy` is the gradient of what forward
  /// returned, undefined after loss(). Returns the gradient of the input, undefined for tokens.
  Tensor backward(const Tensor& dy, Pass& pass);
  /// All weight gradients of the step are there: those that backward kept back, as they were deferred, may be reduced
  /// over the data-parallel ranks.
  void release_gradients();
  /// Adds what a tied output layer collected for the word embeddings of another stage on this rank; once a step, after
  /// release_gradients() of both and before their memory's finish().
  void add_shared_gradient() {
    if (output_) output_->add_shared_gradient();
  }

 private:
  int units() const { return static_cast<int>(layers_.size()) + 4; }
  int norm_unit() const { return units() - 2; }
  int output_unit() const { return units() - 1; }
  bool ties_embeddings() const;
  bool ties_own_embedding() const;
  /// Whether another chunk, here or on another rank, adds its part to the unit's gradient after backward: that of tied
  /// embeddings which are not both in this stage.
  bool is_completed_later(int unit) const;

  void make_layers();
  Tensor hidden(const Tensor& input, Pass& pass);
  void backward_embedding(const Tensor& dy, Pass& pass);
  void acquire(int unit, Use use);
  void release(int unit, Use use, bool last);
  template <class F>
  auto with_units(int first, int last, Use use, const Pass& pass, F&& f);
  template <class F>
  auto with_output(const Tensor& input, Pass& pass, F&& f);

  ModelContext context_;
  StageContents stage_;
  RotaryTable rotary_;
  std::unique_ptr<LanguageModelEmbedding> embedding_;
  std::vector<std::unique_ptr<Module>> layers_;
  std::vector<i64> last_of_layers_;  // its number in the whole model, or that of the last of a recomputed group
  LayerObserver observer_;
  std::vector<LayerRouter> routers_;  // of layers_
  std::unique_ptr<OutputLayer> output_;
  ModelMemory* memory_ = nullptr;
  bool gradients_are_released_ = false;  // by the backward of the step's last microbatch
};

/// The chunks of one pipeline rank, which holds `stages`, in their order. The first outlives the others.
std::vector<std::unique_ptr<GPTModel>> make_chunks(const ModelContext& context,
                                                   const std::vector<StageContents>& stages);

}  // namespace mcpp
