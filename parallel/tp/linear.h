// Linear layers split over the tensor-parallel group (Shoeybi et al., "Megatron-LM", 2019). Constructed from global
// sizes; only this rank's slice of the weight is ever made. Weights are stored [out, in]; `out` may have several axes,
// such as [2, ffn] for a fused gate and up projection, so that a slice along one of them is one box of the global
// weight.
#pragma once
#include <memory>
#include <string>

#include "comm/communicator.h"
#include "tensor/module.h"

namespace mcpp {

struct LinearOptions {
  bool bias = true;
  bool skip_bias_add = false;  ///< the caller adds bias(), fused with what follows; its gradient is still computed here
  double init_std = 0.02;
};

/// What both share: the slice of the weight and the local products with it.
class ParallelLinear : public Module {
 public:
  void visit(const ParamVisitor& f) override;
  /// Null without a bias.
  const Tensor* bias() const { return bias_ ? &bias_->value : nullptr; }

 protected:
  ParallelLinear(const std::string& name, Box weight, Box bias, Communicator& tp, const LinearOptions& options);

  Tensor multiply(const Tensor& x) const;         ///< x W^T
  Tensor input_gradient(const Tensor& dy) const;  ///< dy W
  void weight_gradient(const Tensor& dy, const Tensor& x,
                       Pass& pass);  ///< dW += dy^T x, db += sums of dy; now or deferred
  void add_bias(Tensor& y) const;    ///< unless skipped

  Communicator& tp_;

 private:
  bool skip_bias_add_;
  Param weight_;
  std::unique_ptr<Param> bias_;
};

/// y = x W^T + b with W split along `split_axis` of its output axes: each rank computes its part of the output.
/// forward: x [.., in] whole on every rank -> y [.., out / tp]. backward: dx is summed over the group.
class ColumnParallelLinear final : public ParallelLinear {
 public:
  ColumnParallelLinear(const std::string& name, i64 in, const Shape& out, int split_axis, Communicator& tp,
                       const LinearOptions& options);
  Tensor forward(const Tensor& x, Pass& pass) override;
  Tensor backward(const Tensor& dy, Pass& pass) override;
};

/// y = x W^T + b with W split along its input: each rank has x's matching part and computes a partial sum of y.
/// forward: x [.., in / tp] -> y [.., out] summed over the group. backward: dx [.., in / tp] needs no communication.
class RowParallelLinear final : public ParallelLinear {
 public:
  RowParallelLinear(const std::string& name, i64 in, i64 out, Communicator& tp, const LinearOptions& options);
  Tensor forward(const Tensor& x, Pass& pass) override;
  Tensor backward(const Tensor& dy, Pass& pass) override;
};

}  // namespace mcpp
