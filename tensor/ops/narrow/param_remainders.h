// Master weights of a bf16 model without a copy of them: the model's weights are their upper halves, and what is kept
// beside these is what a half lacks. The name is TransformerEngine's (FusedAdam, store_param_remainders), which keeps
// 16 bits: these say all of a number whose upper half was rounded with halves going up. Weights here are rounded to
// even, as everywhere else, which takes one bit more; with it the numbers are those of a training that has the copy.
#pragma once
#include "tensor/tensor.h"

namespace mcpp {

/// Numbers whose remainders lie together, so that each has whole words.
inline constexpr i64 kRemainderBlock = 64;

/// Of `count` weights, a multiple of kRemainderBlock.
struct ParamRemainders {
  Tensor low;      ///< int32 [count / 2]: the lower half of each, 16 bits, in order
  Tensor went_up;  ///< int32 [count / 32]: a bit for each, in order: whether the upper half was rounded up
};

namespace ops {

/// Of `master`, fp32, what copying it to bf16 leaves out.
void param_remainders(const Tensor& master, ParamRemainders& to);
/// master = what `model`, bf16, was rounded from: every finite or infinite number exactly, and NaN as some NaN.
void join_param_remainders(const Tensor& model, const ParamRemainders& from, Tensor& master);

}  // namespace ops

/// As Kernels.
template <DeviceType D>
struct ParamRemainderKernels {
  static decltype(ops::param_remainders) param_remainders;
  static decltype(ops::join_param_remainders) join_param_remainders;
};

}  // namespace mcpp
