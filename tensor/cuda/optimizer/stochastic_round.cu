#include <algorithm>

#include "tensor/cuda/launch.cuh"
#include "tensor/cuda/philox.cuh"
#include "tensor/ops/low_precision/stochastic_round.h"

namespace mcpp {
namespace {

constexpr int kThreads = 256;

/// Elements [first, first + count) of a box, as blocks of four columns with the same Philox words. The first and the
/// last block of a row may have fewer columns.
struct Blocks {
  u64 key;
  StochasticRows rows;
  i64 first, count;
  i64 first_row = 0, blocks_per_row = 0, blocks = 0;
};

/// One thread per block.
__global__ void __launch_bounds__(kThreads) round_blocks(const u32* x, u16* y, const __grid_constant__ Blocks t) {
  const i64 start = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  for (i64 b = start; b < t.blocks; b += step) {
    const i64 row = t.first_row + b / t.blocks_per_row;
    const i64 block = t.rows.first_column / 4 + b % t.blocks_per_row;  // of the row of the full tensor
    const auto global = static_cast<u64>(t.rows.global_row(row));
    const Philox4 words =
        philox4x32(t.key, {static_cast<u32>(global), static_cast<u32>(global >> 32), 0, static_cast<u32>(block)});
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const i64 column = 4 * block + i - t.rows.first_column, at = row * t.rows.width + column - t.first;
      if (column < 0 || column >= t.rows.width || at < 0 || at >= t.count) continue;
      y[at] = stochastic_bf16(x[at], words[static_cast<std::size_t>(i)] >> 16);
    }
  }
}

}  // namespace

template <>
void StochasticRoundKernels<DeviceType::Cuda>::stochastic_round(const Tensor& x, const StochasticElements& elements,
                                                                Tensor& y) {
  Blocks t{.key = elements.key, .rows = stochastic_rows(elements), .first = elements.first, .count = x.numel()};
  const i64 last_row = (t.first + t.count - 1) / t.rows.width;
  t.first_row = t.first / t.rows.width;
  t.blocks_per_row = (t.rows.first_column % 4 + t.rows.width + 3) / 4;
  t.blocks = (last_row + 1 - t.first_row) * t.blocks_per_row;
  CudaDevice& device = cuda(x);
  launch(round_blocks, grid_for(t.blocks, kThreads, device), kThreads, 0, device.stream(),
         static_cast<const u32*>(x.raw()), static_cast<u16*>(y.raw()), t);
}

}  // namespace mcpp
