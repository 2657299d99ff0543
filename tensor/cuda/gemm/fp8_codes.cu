#include "tensor/cuda/gemm/block_codes.h"
#include "tensor/cuda/gemm/fp8_code.cuh"
#include "tensor/cuda/gemm/fp8_codes.h"

namespace mcpp {
namespace {

constexpr int kThreads = 256;
constexpr u32 kInfinity = 0x7F80;  // bits of bf16 infinity

/// Computes the largest magnitude of bf16 values. Bits without the sign are ordered by magnitude, with non-finite
/// values above all, as are those of fp32, so that the maximum over blocks does not depend on their order.
__global__ void __launch_bounds__(kThreads) largest_magnitude(const u16* x, u32* amax, i64 count) {
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  int largest = 0;
  for (i64 i = first; i < count; i += step) largest = max(largest, x[i] & 0x7FFF);
  for (int offset = kWarp / 2; offset > 0; offset /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, offset));
  if (threadIdx.x % kWarp == 0) atomicMax(amax, min(static_cast<u32>(largest), kInfinity) << 16);
}

__global__ void __launch_bounds__(kThreads)
    write_codes(const __nv_bfloat16* x, const float* amax, Fp8Format format, Fp8Codes to, i64 count) {
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  const float scale = fp8_scale(format, *amax);
  if (first == 0) *to.unscale = 1 / scale;
  for (i64 i = first; i < count; i += step) to.codes[i] = to_fp8_code(widen(x[i]) * scale, format);
}

/// Converts eight elements at a time; both pointers are aligned accordingly.
constexpr int kPack = 8;
__global__ void __launch_bounds__(kThreads)
    write_packed_codes(const __nv_bfloat16* x, const float* amax, Fp8Format format, Fp8Codes to, i64 packs) {
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  const float scale = fp8_scale(format, *amax);
  if (first == 0) *to.unscale = 1 / scale;
  for (i64 i = first; i < packs; i += step) {
    const auto pack = load_pack<kPack>(x + kPack * i);
    Pack<u8, kPack> codes;
#pragma unroll
    for (int k = 0; k < kPack; ++k) codes.values[k] = to_fp8_code(widen(pack.values[k]) * scale, format);
    store_pack(to.codes + kPack * i, codes);
  }
}

constexpr int kTile = 64, kWord = 4;

/// Transposes tiles through shared memory, so that reads and writes are coalesced. Rows are along x, as grids have at
/// most 65535 blocks along y.
__global__ void __launch_bounds__(kThreads)
    write_transposed_codes(const __nv_bfloat16* x, const float* amax, Fp8Format format, Fp8Codes to, i64 rows,
                           i64 columns) {
  MCPP_SHARED(u8[kTile][kTile + kWord], tile);
  const float scale = fp8_scale(format, *amax);
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *to.unscale = 1 / scale;
  const i64 row = i64{blockIdx.x} * kTile, column = i64{blockIdx.y} * kTile;
  for (int i = threadIdx.x; i < kTile * kTile; i += kThreads) {
    const int r = i / kTile, c = i % kTile;
    if (row + r < rows && column + c < columns)
      tile[r][c] = to_fp8_code(widen(x[(row + r) * columns + column + c]) * scale, format);
  }
  __syncthreads();
  constexpr int kWords = kTile / kWord;
  for (int i = threadIdx.x; i < kTile * kWords; i += kThreads) {
    const int c = i / kWords, r = i % kWords * kWord;
    if (row + r >= rows || column + c >= columns) continue;
    Pack<u8, kWord> codes;
#pragma unroll
    for (int k = 0; k < kWord; ++k) codes.values[k] = tile[r + k][c];
    store_pack(to.codes + (column + c) * rows + row + r, codes);
  }
}

__global__ void __launch_bounds__(kThreads)
    round_values(const __nv_bfloat16* x, const float* amax, Fp8Format format, __nv_bfloat16* y, i64 count) {
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  const float scale = fp8_scale(format, *amax);
  for (i64 i = first; i < count; i += step) {
    const float rounded = from_fp8_code(to_fp8_code(widen(x[i]) * scale, format), format);
    y[i] = narrow<__nv_bfloat16>(rounded / scale);
  }
}

}  // namespace

void write_fp8_codes(const Tensor& x, const Fp8Scale& scale, bool transposed, const Fp8Codes& to) {
  CudaDevice& device = cuda(x);
  const auto* source = elements<BFloat16>(x);
  const float* amax = scale.amax.data<float>();
  const i64 count = x.numel(), rows = x.dim(0), columns = x.dim(1);
  const auto tiles = [](i64 size) { return static_cast<unsigned>((size + kTile - 1) / kTile); };
  if (transposed) {
    launch(write_transposed_codes, dim3(tiles(rows), tiles(columns)), kThreads, 0, device.stream(), source, amax,
           scale.format, to, rows, columns);
  } else if (count % kPack == 0 && is_pack_aligned<kPack>(source) && is_pack_aligned<kPack>(to.codes)) {
    launch(write_packed_codes, grid_for(count / kPack, kThreads, device), kThreads, 0, device.stream(), source, amax,
           scale.format, to, count / kPack);
  } else {
    launch(write_codes, grid_for(count, kThreads, device), kThreads, 0, device.stream(), source, amax, scale.format, to,
           count);
  }
}

template <>
void Fp8Kernels<DeviceType::Cuda>::add_amax(const Tensor& x, Tensor& amax) {
  const i64 count = x.numel();
  if (count == 0) return;
  CudaDevice& device = cuda(x);
  launch(largest_magnitude, grid_for(count, kThreads, device), kThreads, 0, device.stream(),
         static_cast<const u16*>(x.raw()), static_cast<u32*>(amax.raw()), count);
}

template <>
void Fp8Kernels<DeviceType::Cuda>::round_to_fp8(const Tensor& x, const Fp8Scale& scale, Tensor& y) {
  const i64 count = x.numel();
  if (count == 0) return;
  if (scale.block.is_defined()) return round_blocks(x, scale, y);
  CudaDevice& device = cuda(x);
  launch(round_values, grid_for(count, kThreads, device), kThreads, 0, device.stream(), elements<BFloat16>(x),
         scale.amax.data<float>(), scale.format, elements<BFloat16>(y), count);
}

}  // namespace mcpp
