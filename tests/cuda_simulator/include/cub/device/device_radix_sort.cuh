// Stand-in for CUB's radix sort: a stable sort, queued on the stream.
#pragma once
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

namespace mcpp::cuda_simulator {

/// Operands of a sort; keys and values have four bytes.
struct SortPairs {
  void* workspace;
  std::size_t workspace_bytes;
  const std::uint32_t* keys_in;
  std::uint32_t* keys_out;
  const std::int32_t* values_in;
  std::int32_t* values_out;
  int count, begin_bit, end_bit;
};
void enqueue_sort(const SortPairs& sort, cudaStream_t stream);

}  // namespace mcpp::cuda_simulator

namespace cub {

struct DeviceRadixSort {
  static cudaError_t SortPairs(void* workspace, std::size_t& bytes, const std::uint32_t* keys_in,
                               std::uint32_t* keys_out, const std::int32_t* values_in, std::int32_t* values_out,
                               int count, int begin_bit, int end_bit, cudaStream_t stream) {
    const std::size_t needed = 256 + static_cast<std::size_t>(count) * 8 / 3;  // an odd size, as CUB's are
    if (!workspace) {
      bytes = needed;
      return cudaSuccess;
    }
    if (bytes < needed) return cudaErrorInvalidValue;
    mcpp::cuda_simulator::enqueue_sort(
        {workspace, needed, keys_in, keys_out, values_in, values_out, count, begin_bit, end_bit}, stream);
    return cudaSuccess;
  }
};

}  // namespace cub
