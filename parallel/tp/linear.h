// Linear layers sharded over the tensor-parallel group (Shoeybi et al., "Megatron-LM", 2019). They are constructed from
// global sizes; only this rank's slice of the weight is allocated. Weights are stored as [out, in]; `out` may have
// several axes, such as [2, ffn] for a fused gate and up projection, so that a slice along one axis is one box of the
// global weight.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "nn/module.h"
#include "parallel/tp/fp8_scaling.h"
#include "parallel/tp/mappings.h"

namespace mcpp {

struct LinearOptions {
  bool bias = true;
  /// If true, the caller adds bias(), fused with the next op. backward() still computes the gradient of the bias.
  bool skip_bias_add = false;
  double init_std = 0.02;
  std::vector<Box> matrices = {};     ///< Param::matrices of the weight; empty = one matrix
  i64 head_rows = 0;                  ///< Param::head_rows of the weight
  bool sequence_parallel = false;     ///< activations outside the region are [s / tp, b, h]
  bool tp_comm_overlap = false;       ///< overlaps communication with the GEMMs; without effect in low precision
  std::optional<Fp8Recipe> fp8 = {};  ///< if not set, GEMMs use the model's dtype
};

/// Slice of a weight [.., out, in] and of its bias on one rank, and the local GEMMs with them: in the model's dtype, or
/// in low precision with scales.
class LinearSlice {
 public:
  LinearSlice(const std::string& name, Box weight, Box bias, const LinearOptions& options);

  i64 outputs() const { return weight.value.numel() / inputs(); }
  i64 inputs() const { return weight.value.dim(-1); }

  void multiply(const Tensor& x, const LinearScales& scales, Tensor& y) const;  ///< y = x W^T
  Tensor multiply_add(const Tensor& x, const LinearScales& scales) const;       ///< x W^T + b
  void add_bias(Tensor& y) const;                                               ///< y += b, if there is a bias
  /// Sets y = gelu(x W^T + b) and the input of GELU, u (tensor/ops/fused/gelu_epilogue.h).
  void multiply_gelu(const Tensor& x, Tensor& u, Tensor& y) const;
  Tensor input_gradient(const Tensor& dy, const LinearScales& scales) const;                ///< dy W
  void input_gradient(const Tensor& dy, const LinearScales& scales, Tensor& dx) const;      ///< dx = dy W
  void input_gradient_gelu(const Tensor& dy, const Tensor& u, Tensor& du) const;            ///< du = (dy W) gelu'(u)
  void add_input_gradient(const Tensor& dy, const LinearScales& scales, Tensor& dx) const;  ///< dx += dy W
  /// Accumulates dW += dy^T x and db += column sums of dy.
  void weight_gradient(const Tensor& dy, const Tensor& x, const LinearScales& scales);
  void visit(const ParamVisitor& f);

  Param weight;
  std::unique_ptr<Param> bias;  ///< nullptr if disabled

 private:
  OutputColumns columns_;
};

/// Column-parallel linear layer: y = x W^T + b with W sharded along `split_axis` of its output axes. forward: x [s, b,
/// in], replicated (sequence parallel: [s / tp, b, in], saved in this form) -> y [s, b, out / tp]. backward: dx is
/// summed over the group.
class ColumnParallelLinear final : public Module {
 public:
  /// If `gather_output`, y and dy are [s, b, out] on every rank; `out` must then have one axis.
  ColumnParallelLinear(const std::string& name, i64 in, const Shape& out, int split_axis, Communicator& tp,
                       const LinearOptions& options, bool gather_output = false);
  Tensor forward(const Tensor& x, MicrobatchContext& context) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& context) override;
  /// Replaces forward() with skip_bias_add and without fp8: returns gelu(y + bias) and stores the input of GELU in `u`.
  /// dy of backward() is then the gradient of u.
  Tensor forward_gelu(const Tensor& x, MicrobatchContext& context, Tensor& u);
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override { slice_.visit(f); }
  /// Returns the bias, or null without one.
  const Tensor* bias() const { return slice_.bias ? &slice_.bias->value : nullptr; }
  /// Returns this rank's slice of the weight.
  const Tensor& weight() const { return slice_.weight.value; }

 private:
  TensorParallelRegion region_;
  Fp8Scaling fp8_;
  LinearSlice slice_;
  bool skip_bias_add_, gather_output_;
};

/// Row-parallel linear layer: y = x W^T + b with W sharded along its input; each rank computes a partial sum of y.
/// forward: x [s, b, in / tp] -> y [s, b, out] summed over the group (sequence parallel: this rank's part, [s / tp, b,
/// out]). backward: dx [s, b, in / tp] needs no sum. The bias is replicated, and every rank computes its full gradient.
class RowParallelLinear final : public Module {
 public:
  /// Without `input_is_parallel`, x and dx are [s, b, in] on every rank.
  RowParallelLinear(const std::string& name, i64 in, i64 out, Communicator& tp, const LinearOptions& options,
                    bool input_is_parallel = true);
  Tensor forward(const Tensor& x, MicrobatchContext& context) override;
  Tensor backward(const Tensor& dy, MicrobatchContext& context) override;
  /// Replaces backward() if x = gelu(u), without fp8. Returns the gradient of u. `take_u` returns u. It is called after
  /// the tensors saved by forward() have been taken.
  Tensor backward_gelu(const Tensor& dy, MicrobatchContext& context, const std::function<Tensor()>& take_u);
  ActivationPlacement output_placement(ActivationPlacement x) const override;
  void visit(const ParamVisitor& f) override { slice_.visit(f); }
  const Tensor* bias() const { return slice_.bias ? &slice_.bias->value : nullptr; }

 private:
  void weight_gradient(const Tensor& dy, const Tensor& full_dy, const Tensor& x, const LinearScales& scales,
                       MicrobatchContext& context);

  TensorParallelRegion region_;
  Fp8Scaling fp8_;
  LinearSlice slice_;
  bool skip_bias_add_, input_is_parallel_;
};

}  // namespace mcpp
