// Feed-forward part of a layer: up projection, activation, down projection.
#pragma once
#include <string>

#include "base/stored_ref.h"
#include "model/config/context.h"
#include "model/layers/branch.h"
#include "parallel/tp/linear.h"
#include "tensor/ops/ops.h"

namespace mcpp {

Activation activation_of(ActivationFunction f);
/// Returns the activation of MLPs and experts with its limits.
ActivationRule activation_rule(const ModelConfig& config);

/// x [s, b, h] -> [s, b, h] (sequence parallel: [s / tp, b, h] -> [s / tp, b, h]) without the output bias, which the
/// caller adds with the residual. Besides the tensors of the projections (the activation's output is linear_fc2's
/// input), saves the up projection [s, b, f] (gated: [s, b, 2 f]) before its bias, or after it with gelu_epilogue.
class Mlp final : public Branch {
 public:
  /// `layer`: global index, starting at 0. `ffn`: the width f.
  Mlp(const std::string& name, i64 layer, StoredRef<ModelContext> context, i64 ffn);

  Tensor forward(const Tensor& x, MicrobatchContext& microbatch) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& microbatch) override;
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override;
  const Tensor* bias() const override { return linear_fc2_.bias(); }

 private:
  Tensor activate(const Tensor& up) const;

  const ModelContext& context_;
  ActivationRule activation_;
  ColumnParallelLinear linear_fc1_;
  RowParallelLinear linear_fc2_;
};

}  // namespace mcpp
