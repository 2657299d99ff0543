// The experts of a layer that a rank has: MLPs of the same shape, each for rows of its own.
#pragma once
#include <span>
#include <string>

#include "base/kept_ref.h"
#include "model/config/context.h"
#include "nn/module.h"

namespace mcpp {

/// x [M, h], rows[e] of them for expert e, one expert after another -> [M, h]; where the width of an expert is cut over
/// ranks, a part of the sum. Their matrices are boxes of two global tensors, linear_fc1.weight [num_experts, ffn, h]
/// (gated: [num_experts, 2, ffn, h]) and linear_fc2.weight [num_experts, h, ffn]. Saves x, the up projection [M, ffn]
/// (gated: [M, 2 ffn]) and the activation's output [M, ffn].
class Experts {
 public:
  Experts(const std::string& name, KeptRef<ModelContext> context);

  Tensor forward(const Tensor& x, std::span<const i64> rows, Pass& pass);
  /// Returns dx.
  Tensor backward(const Tensor& dy, std::span<const i64> rows, Pass& pass);
  void visit(const ParamVisitor& f);

 private:
  Tensor activate(const Tensor& up) const;
  void add_weight_gradient(Param& weight, const Tensor& dy, const Tensor& x, std::span<const i64> rows, Pass& pass);

  const ModelContext& context_;
  Activation activation_;
  Param fc1_, fc2_;
};

}  // namespace mcpp
