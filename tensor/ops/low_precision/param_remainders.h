// Master weights of a bf16 model without a full copy: the model's weights are the upper halves of the master weights,
// and only the remainders are stored. Named after Transformer Engine (FusedAdam, store_param_remainders), where 16 bits
// suffice because halves are rounded up. Here weights are rounded to even, as everywhere else in this program, which
// takes one more bit. Training is bitwise identical to training with a full copy.
#pragma once
#include "tensor/tensor.h"

namespace mcpp {

/// Values per block of remainders, so that each block consists of whole words.
inline constexpr i64 kRemainderBlock = 64;

/// Remainders of `count` weights, a multiple of kRemainderBlock.
struct ParamRemainders {
  Tensor low;         ///< int32 [count / 2]: lower 16 bits of each weight, in order
  Tensor rounded_up;  ///< int32 [count / 32]: one bit per weight, in order: 1 if the upper half was rounded up
};

namespace ops {

/// Stores the bits of `master`, fp32, that are missing in its bf16 copy.
void param_remainders(const Tensor& master, ParamRemainders& to);
/// Reconstructs `master` from `model`, its rounded bf16 copy. Finite and infinite values are exact; NaN remains NaN.
void join_param_remainders(const Tensor& model, const ParamRemainders& from, Tensor& master);

}  // namespace ops

/// Backend implementations, as in Kernels.
template <DeviceType D>
struct ParamRemainderKernels {
  static decltype(ops::param_remainders) param_remainders;
  static decltype(ops::join_param_remainders) join_param_remainders;
};

}  // namespace mcpp
