// A module maps one tensor to one of the same or another shape, and back.
#pragma once
#include "nn/param.h"
#include "nn/pass.h"

namespace mcpp {

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  virtual Tensor forward(const Tensor& x, Pass& pass) = 0;
  /// Takes from pass.stash, in reverse, what forward saved; adds to the main gradients of its parameters; returns dx.
  virtual Tensor backward(const Tensor& dy, Pass& pass) = 0;
  /// How what forward makes of an x that lies so over the tensor-parallel ranks lies there. An Internal error, naming a
  /// parameter or the module, when forward does not take such an x, or when parameters are not placed as it uses them:
  /// whoever puts modules together asks once, as the model is built.
  virtual ActivationPlacement gives(ActivationPlacement x) const = 0;
  /// Calls f on every parameter, in a fixed order that is the same at every layout.
  virtual void visit(const ParamVisitor& f) = 0;
};

}  // namespace mcpp
