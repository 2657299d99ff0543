// Linear map with few outputs, such as router logits. It computes in fp32 or fp64 regardless of the model's dtype,
// because discrete choices depend on the outputs.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "model/config/context.h"
#include "nn/module.h"

namespace mcpp {

/// Maps x [T, h] to [T, n] in fp32, or in fp64 if the model is fp64 or `is_fp64` is set. The weight [n, h] and the
/// optional bias [n] have the model's dtype and are replicated on every rank.
class Fp32Linear {
 public:
  Fp32Linear(const std::string& name, const ModelContext& context, i64 outputs, bool has_bias = false,
             bool is_fp64 = false);

  /// Returns the dtype of the outputs.
  DType dtype() const { return dtype_; }
  /// Returns the outputs for x, which may have the model's dtype, its accumulate dtype or the dtype of the outputs.
  Tensor forward(const Tensor& x) const;
  /// Returns the gradient of x, [T, h]. Both dy and the result have the dtype of the outputs.
  Tensor input_gradient(const Tensor& dy) const;
  /// Adds to the weight gradient, immediately or when delayed weight gradients run. `x` returns the argument of
  /// forward().
  void weight_gradient(const Tensor& dy, std::function<Tensor()> x, MicrobatchContext& microbatch);

  /// Adds the column sums of dy to the gradient of the bias, if there is a bias.
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
