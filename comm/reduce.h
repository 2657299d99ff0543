// Sums and maxima over the tensors of several ranks: in rank order, accumulated in fp32 for low-precision types,
// rounded once. All CPU backends use these functions, so their results are bitwise identical.
#pragma once
#include <span>

#include "comm/communicator.h"

namespace mcpp {

/// Returns the accumulation type of a reduction: fp32 for low-precision types, otherwise `t`.
constexpr DType accumulator_of(DType t) {
  return is_low_precision(t) ? DType::F32 : t;
}

/// Computes out[i] = parts[0][i] op parts[1][i] op ... for `count` elements of `dtype`. `out` may be one of the parts.
void reduce(ReduceOp op, DType dtype, std::span<const void* const> parts, void* out, i64 count);

// Incremental reduction, for ranks that cannot access all parts. `acc` has elements of accumulator_of(dtype).

/// Sets acc = part.
void start_reduction(DType dtype, const void* part, void* acc, i64 count);
/// Computes acc = acc op part.
void continue_reduction(ReduceOp op, DType dtype, const void* part, void* acc, i64 count);
/// Sets out = acc, rounded to `dtype`.
void finish_reduction(DType dtype, const void* acc, void* out, i64 count);

}  // namespace mcpp
