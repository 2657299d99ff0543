// Parallel loops over the device's threads with results independent of their number: work is split into pieces of fixed
// size, each processed by one thread.
#pragma once
#include <algorithm>

#include "base/integer_math.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace mcpp {

inline CpuDevice& cpu(const Tensor& t) {
  return static_cast<CpuDevice&>(t.device());
}

/// Piece size for memory-bound work: large compared to the scheduling cost of a piece, small compared to the L2 cache.
inline constexpr i64 kElementsPerPiece = 16384;

/// Returns the number of rows of n elements in such a piece.
constexpr i64 rows_per_piece(i64 n) {
  return std::max<i64>(1, kElementsPerPiece / std::max<i64>(1, n));
}

/// Calls f(begin, end) for [0, count) in pieces of `piece` (the last may be shorter), distributed over the device's
/// threads. Runs on the calling thread if there is one piece or one thread.
template <class F>
void parallel_for(const CpuDevice& device, i64 count, i64 piece, F&& f) {
  const i64 pieces = ceil_div(count, piece);
  const auto run = [&](i64 i) { f(i * piece, std::min(count, (i + 1) * piece)); };
  if (pieces <= 1 || device.threads() == 1) {
    for (i64 i = 0; i < pieces; ++i) run(i);
    return;
  }
#pragma omp parallel for num_threads(device.threads()) schedule(static)
  for (i64 i = 0; i < pieces; ++i) run(i);
}

}  // namespace mcpp
