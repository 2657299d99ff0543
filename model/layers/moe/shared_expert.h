// An expert that takes every token (Dai et al., "DeepSeekMoE", 2024), with a gate where the model has one (Qwen2-MoE).
#pragma once
#include <memory>
#include <string>

#include "model/layers/mlp.h"
#include "model/layers/wide_linear.h"

namespace mcpp {

/// x [s, b, h] -> [s, b, h], as Mlp with its bias. With a gate, each token's is multiplied by sigmoid(x . gate). Saves,
/// with a gate, x, the gate's logits [T, 1] and what it is applied to.
class SharedExpert final : public Module {
 public:
  SharedExpert(const std::string& name, i64 layer, KeptRef<ModelContext> context);

  Tensor forward(const Tensor& x, Pass& pass) override;
  Tensor backward(const Tensor& dy, Pass& pass) override;
  ActivationPlacement gives(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;

 private:
  Mlp mlp_;
  std::unique_ptr<WideLinear> gate_;  // to one number; null without one
};

}  // namespace mcpp
