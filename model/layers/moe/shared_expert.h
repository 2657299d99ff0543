// Shared expert, which processes every token (Dai et al., "DeepSeekMoE", 2024), with a gate if the model has one
// (Qwen2-MoE).
#pragma once
#include <memory>
#include <string>

#include "model/layers/fp32_linear.h"
#include "model/layers/mlp.h"

namespace mcpp {

/// x [s, b, h] -> [s, b, h], as Mlp including its bias. A gate multiplies each token's output by sigmoid(x . gate).
/// With a gate, saves x, the gate's logits [T, 1] and the value that it is applied to.
class SharedExpert final : public Module {
 public:
  SharedExpert(const std::string& name, i64 layer, StoredRef<ModelContext> context);

  Tensor forward(const Tensor& x, MicrobatchContext& pass) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& pass) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;

 private:
  Mlp mlp_;
  std::unique_ptr<Fp32Linear> gate_;  // one output; null without a gate
};

}  // namespace mcpp
