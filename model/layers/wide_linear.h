// A linear map to a few numbers, computed in fp32 whatever the model's type is, because these decide.
#pragma once
#include <functional>
#include <string>

#include "model/config/context.h"
#include "nn/module.h"

namespace mcpp {

/// x [T, h] -> [T, n] fp32 (fp64), with a weight [n, h] of the model's type, which every rank holds whole, and no bias.
class WideLinear {
 public:
  WideLinear(const std::string& name, const ModelContext& context, i64 outputs);

  /// x may be of the model's type, or wide.
  Tensor forward(const Tensor& x) const;
  /// Of x, [T, h] fp32 (fp64).
  Tensor input_gradient(const Tensor& dy) const;
  /// Adds the weight's gradient, or where those are deferred, later. `x` gives what forward() was given.
  void weight_gradient(const Tensor& dy, std::function<Tensor()> x, Pass& pass);

  Param& weight() { return weight_; }
  const Param& weight() const { return weight_; }

 private:
  Param weight_;
};

}  // namespace mcpp
