// Integers that are ordered like floating-point numbers, for reductions in which NaN must not be lost.
#pragma once
#include <cuda_runtime.h>

#include "tensor/tensor.h"

namespace mcpp {

/// Returns the type of the keys of a floating-point type: int64 for fp64, otherwise int32.
DType ordered_key_type(DType type);

/// Writes the key of each element of x to `keys`, which has as many elements. Keys have the order of the numbers, -0 is
/// below 0, and NaN has the largest key. Runs on `stream`.
void encode_ordered_keys(const Tensor& x, const Tensor& keys, cudaStream_t stream);
/// Writes the numbers whose keys are `keys` to x. Runs on `stream`.
void decode_ordered_keys(const Tensor& keys, const Tensor& x, cudaStream_t stream);

}  // namespace mcpp
