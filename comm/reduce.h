// Sums and maxima over the tensors of several ranks: by rank, widened where the type is narrow, rounded once. All
// backends on a CPU compute with these, so that they give the same bits.
#pragma once
#include <span>

#include "comm/communicator.h"

namespace mcpp {

/// The type that a reduction is done in: fp32 for narrow ones, otherwise `t`.
constexpr DType accumulator_of(DType t) {
  return is_narrow(t) ? DType::F32 : t;
}

/// out[i] = parts[0][i] op parts[1][i] op ..., `count` elements of `dtype`. `out` may be one of the parts.
void reduce(ReduceOp op, DType dtype, std::span<const void* const> parts, void* out, i64 count);

// The same in steps, for ranks that cannot see all parts: acc holds accumulator_of(dtype).

/// acc = part.
void start_reduction(DType dtype, const void* part, void* acc, i64 count);
/// acc = acc op part.
void continue_reduction(ReduceOp op, DType dtype, const void* part, void* acc, i64 count);
/// out = acc, rounded.
void finish_reduction(DType dtype, const void* acc, void* out, i64 count);

}  // namespace mcpp
