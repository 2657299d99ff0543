// LayerNorm or RMSNorm over the hidden axis.
#pragma once
#include <memory>
#include <string>

#include "model/config/context.h"
#include "nn/module.h"

namespace mcpp {

/// Works on whole rows, so on any part of the sequence. Saves x [.., h], rstd [T] and, for LayerNorm, mean [T].
class Norm final : public Module {
 public:
  Norm(const std::string& name, const ModelContext& context);

  Tensor forward(const Tensor& x, Pass& pass) override;
  Tensor backward(const Tensor& dy, Pass& pass) override;
  ActivationPlacement gives(ActivationPlacement x) const override;
  /// dx += the gradient: dx already holds that of the residual branch.
  void backward_add(const Tensor& dy, Pass& pass, Tensor& dx);
  void visit(const ParamVisitor& f) override;

  /// y alone, for recomputation.
  Tensor normalize(const Tensor& x) const;

 private:
  struct Output {
    Tensor y, mean, rstd;
  };
  Output compute(const Tensor& x) const;
  void input_gradient(const Tensor& dy, Pass& pass, Tensor& dx, bool add);

  double epsilon_;
  Param weight_;
  std::unique_ptr<Param> bias_;  // LayerNorm only
};

}  // namespace mcpp
