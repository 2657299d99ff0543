// Launch layouts of kernels over matrix rows: threads that own columns and iterate over rows, and threads that share a
// row. A unit is what a thread reads at once: 16 bytes of elements if aligned, otherwise one element.
#pragma once
#include <algorithm>

#include "tensor/cuda/launch.cuh"

namespace mcpp {

/// Calls f.template operator()<kUnit>() with 16 bytes of E, or with one element.
template <class E, class F>
void on_unit(bool packed, F&& f) {
  if (packed)
    f.template operator()<Pack<E>::kCount>();
  else
    f.template operator()<1>();
}

/// Launch of threads that own one unit of columns each (x), and rows a fixed stride apart (y), of `depth` matrices (z).
struct ColumnLaunch {
  dim3 grid, block;
};
inline ColumnLaunch columns_launch(i64 units, i64 rows, const CudaDevice& device, i64 depth = 1) {
  constexpr i64 kThreads = 256, kWaves = 4, kMaxGridY = 65535;
  i64 across = kThreads;  // fewer if many threads of the last block would have no column
  while (across > 1 && ((units + across - 1) / across * across - units) * 8 > units) across /= 2;
  const i64 down = kThreads / across, blocks_across = (units + across - 1) / across;
  const i64 max_useful_blocks = device.multiprocessors() * (2048 / kThreads) * kWaves;
  const i64 blocks_down =
      std::clamp<i64>(std::min(max_useful_blocks / (blocks_across * depth), (rows + down - 1) / down), 1, kMaxGridY);
  return {dim3(static_cast<unsigned>(blocks_across), static_cast<unsigned>(blocks_down), static_cast<unsigned>(depth)),
          dim3(static_cast<unsigned>(across), static_cast<unsigned>(down))};
}

/// Block width for grids of (rows, parts of a row), where a block processes part of one row.
constexpr int kRowThreads = 128;
inline dim3 row_grid(i64 rows, i64 units) {
  return {static_cast<unsigned>(rows), static_cast<unsigned>((units + kRowThreads - 1) / kRowThreads)};
}
/// Returns the first column of the calling thread in such a grid.
template <int kUnit>
__device__ __forceinline__ i64 thread_column() {
  return (i64{blockIdx.y} * kRowThreads + threadIdx.x) * kUnit;
}

/// Returns the first column of the calling thread under a ColumnLaunch.
template <int kUnit>
__device__ __forceinline__ i64 first_column() {
  return (blockIdx.x * i64{blockDim.x} + threadIdx.x) * kUnit;
}

/// Calls load(k, row) and then use(k, row) for the calling thread's rows under a ColumnLaunch; k < kUnroll indexes the
/// rows whose loads are in flight together.
template <int kUnroll, class Load, class Use>
__device__ __forceinline__ void sweep_rows(i64 rows, Load&& load, Use&& use) {
  const i64 step = i64{gridDim.y} * blockDim.y;
  for (i64 row = blockIdx.y * i64{blockDim.y} + threadIdx.y; row < rows; row += kUnroll * step) {
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      if (row + k * step < rows) load(k, row + k * step);
#pragma unroll
    for (int k = 0; k < kUnroll; ++k)
      if (row + k * step < rows) use(k, row + k * step);
  }
}

/// Loads a unit of a bias, or its neutral value if there is no bias.
template <class E, int kUnit>
__device__ __forceinline__ Pack<E, kUnit> load_bias(const E* bias, i64 i) {
  if (bias) return load_pack<E, kUnit>(bias + i);
  Pack<E, kUnit> none;
#pragma unroll
  for (int j = 0; j < kUnit; ++j) none.values[j] = narrow<E>(AccumulateType<E>(-0.0));
  return none;
}

/// Calls f(k, i) for the calling thread's units of a row of n elements that all threads of a block (along x) share:
/// unit k begins with element i. kHeld > 0 guarantees that no thread has more than kHeld units, so that they fit in
/// registers; 0 is for rows of any length, with k always 0.
template <int kUnit, int kHeld, class F>
__device__ __forceinline__ void each_unit(i64 n, F&& f) {
  if constexpr (kHeld > 0) {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      const int i = static_cast<int>(threadIdx.x + k * blockDim.x) * kUnit;
      if (i < n) f(k, i64{i});
    }
  } else {
    for (i64 i = i64{threadIdx.x} * kUnit; i < n; i += i64{blockDim.x} * kUnit) f(0, i);
  }
}

/// Units of one row that belong to the calling thread, held in registers or, if kHeld is 0, reloaded on each access.
template <class E, int kUnit, int kHeld>
class RowUnits {
 public:
  __device__ __forceinline__ void load(const E* row, i64 n) {
    row_ = row;
    if constexpr (kHeld > 0) each_unit<kUnit, kHeld>(n, [&](int k, i64 i) { held_[k] = load_pack<E, kUnit>(row + i); });
  }
  /// Returns unit k, which begins with element i.
  __device__ __forceinline__ Pack<E, kUnit> at(int k, i64 i) const {
    if constexpr (kHeld > 0)
      return held_[k];
    else
      return load_pack<E, kUnit>(row_ + i);
  }

 private:
  const E* row_;
  Pack<E, kUnit> held_[std::max(kHeld, 1)];
};

}  // namespace mcpp
