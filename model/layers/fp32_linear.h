// Linear map to a few outputs, computed in fp32 or fp64 regardless of the model's dtype because discrete choices depend
// on its outputs.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "model/config/context.h"
#include "nn/module.h"

namespace mcpp {

/// x [T, h] -> [T, n] fp32, or fp64 if the model has this dtype or `is_fp64` is set. The weight [n, h] and the bias
/// [n], if there is one, have the model's dtype and are replicated on every rank.
class Fp32Linear {
 public:
  Fp32Linear(const std::string& name, const ModelContext& context, i64 outputs, bool has_bias = false,
             bool is_fp64 = false);

  /// Returns the dtype of the outputs.
  DType dtype() const { return dtype_; }
  /// x may have the model's dtype, its accumulate dtype or the dtype of the outputs.
  Tensor forward(const Tensor& x) const;
  /// Returns the gradient of x, [T, h] of the dtype of the outputs, which dy has, too.
  Tensor input_gradient(const Tensor& dy) const;
  /// Accumulates the weight gradient, now or later if weight gradients are delayed. `x` returns forward()'s argument.
  void weight_gradient(const Tensor& dy, std::function<Tensor()> x, MicrobatchContext& microbatch);

  /// Accumulates the bias gradient, the column sums of dy, if there is a bias.
  void bias_gradient(const Tensor& dy);
  void visit(const ParamVisitor& f);

  Param& weight() { return weight_; }
  const Param& weight() const { return weight_; }

 private:
  DType dtype_;
  Param weight_;
  std::unique_ptr<Param> bias_;
};

}  // namespace mcpp
