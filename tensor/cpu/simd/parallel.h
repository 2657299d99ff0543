// Parallel loops over the device's threads with results independent of their number: work is split into chunks of fixed
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

/// Chunk size for memory-bound work: large compared to the scheduling cost of a chunk, small compared to the L2 cache.
inline constexpr i64 kElementsPerChunk = 16384;

/// Returns the number of rows of n elements in such a chunk.
constexpr i64 rows_per_chunk(i64 n) {
  return std::max<i64>(1, kElementsPerChunk / std::max<i64>(1, n));
}

/// Calls f(begin, end) for [0, count) in chunks of `chunk` (the last may be shorter), distributed over the device's
/// threads. Runs on the calling thread if there is one chunk or one thread.
template <class F>
void parallel_for(const CpuDevice& device, i64 count, i64 chunk, F&& f) {
  const i64 chunks = ceil_div(count, chunk);
  const auto run = [&](i64 i) { f(i * chunk, std::min(count, (i + 1) * chunk)); };
  if (chunks <= 1 || device.threads() == 1) {
    for (i64 i = 0; i < chunks; ++i) run(i);
    return;
  }
#pragma omp parallel for num_threads(device.threads()) schedule(static)
  for (i64 i = 0; i < chunks; ++i) run(i);
}

}  // namespace mcpp
