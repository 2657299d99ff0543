// Simulation of CUB's radix sort.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/cuda_simulator/include/cub/device/device_radix_sort.cuh"
#include "tests/cuda_simulator/simulator.h"

namespace mcpp::cuda_simulator {

void enqueue_sort(const SortPairs& sort, cudaStream_t stream) {
  enqueue(stream, {.name = "cub::DeviceRadixSort::SortPairs", .run = [sort] {
                     const auto count = static_cast<std::size_t>(sort.count);
                     record_access(sort.workspace, sort.workspace_bytes, true);
                     std::memset(sort.workspace, 0xA5, sort.workspace_bytes);
                     record_access(sort.keys_in, count * 4, false);
                     record_access(sort.values_in, count * 4, false);
                     record_access(sort.keys_out, count * 4, true);
                     record_access(sort.values_out, count * 4, true);
                     const int bits = sort.end_bit - sort.begin_bit;
                     const std::uint32_t mask = bits >= 32 ? ~0u : (1u << bits) - 1;
                     std::vector<std::size_t> order(count);
                     std::iota(order.begin(), order.end(), std::size_t{0});
                     std::ranges::stable_sort(order, {},
                                              [&](std::size_t i) { return sort.keys_in[i] >> sort.begin_bit & mask; });
                     for (std::size_t i = 0; i < count; ++i) {
                       sort.keys_out[i] = sort.keys_in[order[i]];
                       sort.values_out[i] = sort.values_in[order[i]];
                     }
                   }});
}

}  // namespace mcpp::cuda_simulator
