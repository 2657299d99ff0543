// Which scales the products of a linear layer take in fp8. A tensor has one scale, from the largest magnitude in all of
// it: ranks that hold parts of a tensor find that together, so that each rounds its part as one rank rounds the whole.
#pragma once
#include <initializer_list>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "nn/pass.h"
#include "tensor/ops/narrow/fp8.h"

namespace mcpp {

/// Of the linear layers of a transformer layer.
struct Fp8Recipe {
  Fp8Format forward = Fp8Format::E4M3;    ///< of inputs and weights
  Fp8Format gradients = Fp8Format::E4M3;  ///< of what outputs get in backward
  /// The groups over which the tensors of one microbatch are cut: tensor- and context-parallel ranks.
  std::vector<Communicator*> holders = {};
};

/// Of the operands of a layer's products. Without fp8 all are undefined.
struct LinearScales {
  std::optional<Fp8Scale> input, weight, gradient;
};

class Fp8Scaling {
 public:
  /// No recipe: no scales, products are in the type of their operands.
  explicit Fp8Scaling(std::optional<Fp8Recipe> recipe) : recipe_(std::move(recipe)) {}

  /// Of a layer's input and weight, which may be tensors that lie apart, and of which this rank may have a part. Saves
  /// what backward() needs, 8 bytes, as the owner's.
  LinearScales forward(const void* owner, const Tensor& input, std::initializer_list<Tensor> weight, Pass& pass) const;
  /// Those of forward(), taken from the pass, and of the output's gradient.
  LinearScales backward(const void* owner, std::initializer_list<Tensor> gradient, Pass& pass) const;

 private:
  LinearScales scales(const Tensor& saved) const;
  void agree(Tensor& amax) const;

  std::optional<Fp8Recipe> recipe_;
};

/// c = op(a) op(b) + beta c: ops::matmul() of matrices, or in fp8 where they have scales.
void multiply_scaled(const Tensor& a, const std::optional<Fp8Scale>& a_scale, const Tensor& b,
                     const std::optional<Fp8Scale>& b_scale, Tensor& c, const ops::MatmulOptions& options = {});

}  // namespace mcpp
