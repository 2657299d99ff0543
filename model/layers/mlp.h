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
/// Returns the activation of MLPs and experts, with its clamp.
ActivationRule activation_rule(const ModelConfig& config);

/// Maps x to y, both [s, b, h] (sequence parallel: [s / tp, b, h]), without the output bias, which the caller adds
/// together with the residual. In addition to what the projections save, which includes the output of the activation,
/// saves the result of the up projection [s, b, f] (gated: [s, b, 2 f]), before the bias or, with gelu_epilogue, after
/// it.
class Mlp final : public Branch {
 public:
  /// `layer` is the global index, starting at 0, and `ffn` the width f.
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
