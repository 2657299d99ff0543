// Interface of all layers: a differentiable map from one tensor to another.
#pragma once
#include "nn/microbatch_context.h"
#include "nn/param.h"

namespace mcpp {

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  virtual Tensor forward(const Tensor& x, MicrobatchContext& context) = 0;
  /// Computes dx and adds to the main gradients of the parameters. Pops the tensors that forward saved from `context`,
  /// in reverse order.
  virtual Tensor backward(const Tensor& dy, MicrobatchContext& context) = 0;
  /// Returns how the output of forward is distributed over the tensor-parallel ranks if its input is distributed as
  /// `x`. Called once, when the model is built. Throws an Internal error, naming a parameter or the module, if forward
  /// does not accept such an input or if the parameters are not placed as forward uses them.
  virtual ActivationPlacement output_placement(ActivationPlacement x) const = 0;
  /// Calls f on every parameter, in a fixed order that does not depend on the layout.
  virtual void visit(const ParamVisitor& f) = 0;
};

}  // namespace mcpp
