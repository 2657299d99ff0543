// FP8 scales of the GEMMs of a linear layer. Each tensor has one scale, derived from the largest magnitude of its
// elements. Ranks that hold shards of a tensor reduce the magnitude, so that rounding does not depend on the sharding.
#pragma once
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "nn/microbatch_context.h"
#include "tensor/ops/low_precision/fp8.h"

namespace mcpp {

/// FP8 settings of the linear layers of a transformer layer.
struct Fp8Recipe {
  Fp8Format forward = Fp8Format::E4M3;    ///< format of inputs and weights
  Fp8Format gradients = Fp8Format::E4M3;  ///< format of output gradients in backward
  /// Groups over which the tensors of one microbatch are sharded: tensor- and context-parallel ranks.
  std::vector<Communicator*> holders = {};
};

/// Scales of the operands of a layer's GEMMs. Undefined without fp8.
struct LinearScales {
  std::optional<Fp8Scale> input, weight, gradient;
};

class Fp8Scaling {
 public:
  /// If `recipe` is not set, there are no scales, and GEMMs use the dtype of their operands.
  explicit Fp8Scaling(std::optional<Fp8Recipe> recipe) : recipe_(std::move(recipe)) {}

  /// Returns the scales of the input and the weight of a layer. Each of them may consist of several tensors or be
  /// sharded over ranks. Saves 8 bytes for backward() under `owner`.
  LinearScales forward(const void* owner, const Tensor& input, const std::vector<Tensor>& weight,
                       MicrobatchContext& context) const;
  /// Returns the scales of forward(), taken from the context, and of the output's gradient.
  LinearScales backward(const void* owner, const std::vector<Tensor>& gradient, MicrobatchContext& context) const;

 private:
  LinearScales scales(const Tensor& saved) const;
  void reduce_amax(Tensor& amax) const;

  std::optional<Fp8Recipe> recipe_;
};

/// Computes c = op(a) op(b) + beta c with ops::matmul(), or in fp8 if both operands have scales.
void multiply_scaled(const Tensor& a, const std::optional<Fp8Scale>& a_scale, const Tensor& b,
                     const std::optional<Fp8Scale>& b_scale, Tensor& c, const ops::MatmulOptions& options = {});

}  // namespace mcpp
