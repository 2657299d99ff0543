// GPT-2 and Llama style decoders, from one set of modules. A model is a row of units: the embedding, the layers (or
// groups of recomputed layers) and the output. Units are what data-parallel sharding gathers and reduces, and what
// pipeline stages hold.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "model/attention.h"
#include "model/embedding.h"
#include "model/output_layer.h"
#include "parallel/dp/buffer.h"
#include "tensor/module.h"

namespace mcpp {

class GPTModel {
 public:
  explicit GPTModel(ModelContext context);
  GPTModel(const GPTModel&) = delete;  // its modules refer to its context
  GPTModel& operator=(const GPTModel&) = delete;

  const ModelContext& context() const { return context_; }
  /// Units 0 (embedding), 1 .. units() - 2 (layers), units() - 1 (output).
  int units() const { return static_cast<int>(layers_.size()) + 2; }
  /// Every parameter with its unit, in a fixed order.
  void visit(const std::function<void(Param&, int unit)>& f);
  /// The parameters' memory, told before and after each use of a unit. Must outlive the model's last use.
  void set_memory(ParamAndGradBuffer& memory) { memory_ = &memory; }

  /// tokens, targets int32 [s, b]. Saves what backward(pass) needs; `loss_scale` multiplies the gradient, not the
  /// returned losses.
  TokenLosses forward(const Tensor& tokens, const Tensor& targets, double loss_scale, Pass& pass);
  /// Adds the gradient of (sum of losses x loss_scale) to the main gradients.
  void backward(Pass& pass);
  /// logits [s * b, padded vocabulary / tp], for generation and tests.
  Tensor logits(const Tensor& tokens, Pass& pass);

 private:
  Tensor hidden(const Tensor& tokens, Pass& pass);
  template <class F>
  auto with_unit(int unit, Use use, const Pass& pass, F&& f);

  ModelContext context_;
  RotaryTable rotary_;
  LanguageModelEmbedding embedding_;
  std::vector<std::unique_ptr<Module>> layers_;
  OutputLayer output_;
  ParamAndGradBuffer* memory_ = nullptr;
};

}  // namespace mcpp
