// One pre-norm transformer layer:
//   x1 = x  + dropout(attention(norm(x)) + bias)
//   y  = x1 + dropout(mlp(norm(x1)) + bias), or experts in place of the MLP
// With sequence parallelism x, x1 and y are this rank's part of the sequence, [s / tp, b, h].
#pragma once
#include <memory>
#include <string>

#include "base/kept_ref.h"
#include "model/layers/attention.h"
#include "model/layers/moe_layer.h"
#include "model/layers/norm.h"

namespace mcpp {

class TransformerLayer final : public Module {
 public:
  /// `layer` counts from 0 over the whole model.
  TransformerLayer(i64 layer, KeptRef<ModelContext> context, RotaryTable& rotary);

  Tensor forward(const Tensor& x, Pass& pass) override;
  /// dy's memory may be used for the result.
  Tensor backward(const Tensor& dy, Pass& pass) override;
  ActivationPlacement gives(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;
  /// Null in a layer without experts.
  Router* router() { return router_; }

 private:
  Dropout residual_dropout(const Tensor& x, const std::string& site, const Pass& pass) const;
  /// norm, then the branch, then bias, dropout and the residual.
  Tensor residual_forward(const Tensor& x, Norm& norm, Branch& branch, const std::string& site, Pass& pass);
  Tensor residual_backward(const Tensor& dy, Norm& norm, Branch& branch, const std::string& site, Pass& pass);

  std::string name_;
  const ModelContext& context_;
  Norm input_layernorm_;
  SelfAttention self_attention_;
  Norm pre_mlp_layernorm_;
  Router* router_ = nullptr;
  std::unique_ptr<Branch> mlp_;
};

}  // namespace mcpp
