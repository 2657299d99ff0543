#include "tensor/cuda/gemm/fp8_code.cuh"
#include "tensor/ops/low_precision/float_codes.h"
#include "tensor/ops/low_precision/row_codes.h"

namespace mcpp {
namespace {

constexpr int kThreads = 256;

/// Rows of codes: sizes of a row in elements, blocks and bytes.
struct CodedRows {
  i64 columns, block, blocks, code_bytes, bytes;
  Fp8Format format;

  CodedRows(const Tensor& x, const RowEncoding& encoding)
      : columns(x.dim(1)),
        block(encoding.block),
        blocks(ceil_div(columns, block)),
        code_bytes(encoding.code_words(columns) * 4),
        bytes(encoding.words(columns) * 4),
        format(encoding.format) {}
};

/// One warp per block of elements. The warp of the last block of a row also clears the unused bytes of the row.
__global__ void __launch_bounds__(kThreads)
    encode_row_blocks(const __nv_bfloat16* x, const CodedRows rows, u8* to, i64 all_blocks) {
  const int lane = threadIdx.x % kWarp;
  const i64 step = i64{gridDim.x} * blockDim.x / kWarp;
  for (i64 b = (blockIdx.x * i64{blockDim.x} + threadIdx.x) / kWarp; b < all_blocks; b += step) {
    const i64 row = b / rows.blocks, index = b % rows.blocks, first = index * rows.block;
    const i64 end = min(first + rows.block, rows.columns);
    const __nv_bfloat16* values = x + row * rows.columns;
    u8* codes = to + row * rows.bytes;
    int largest = 0;  // bits of non-finite values are the largest
    for (i64 i = first + lane; i < end; i += kWarp) largest = max(largest, __float_as_int(fabsf(widen(values[i]))));
    for (int offset = kWarp / 2; offset > 0; offset /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, offset));
    const float scale = fp8_scale(rows.format, __int_as_float(largest));
    for (i64 i = first + lane; i < end; i += kWarp) codes[i] = to_fp8_code(widen(values[i]) * scale, rows.format);
    // The exponent of the inverse, with the bias of E8M0; all bits for NaN.
    const int exponent = __float_as_int(scale) >> 23 & 0xFF;
    if (lane == 0) codes[rows.code_bytes + index] = static_cast<u8>(exponent == 0xFF ? 0xFF : 254 - exponent);
    if (index + 1 < rows.blocks) continue;
    for (i64 i = rows.columns + lane; i < rows.code_bytes; i += kWarp) codes[i] = 0;
    for (i64 i = rows.code_bytes + rows.blocks + lane; i < rows.bytes; i += kWarp) codes[i] = 0;
  }
}

__global__ void __launch_bounds__(kThreads)
    decode_row_elements(const u8* from, const CodedRows rows, __nv_bfloat16* x, i64 count) {
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  for (i64 i = first; i < count; i += step) {
    const i64 row = i / rows.columns, column = i % rows.columns;
    const u8* codes = from + row * rows.bytes;
    const float unscale = from_e8m0(codes[rows.code_bytes + column / rows.block]);
    x[i] = narrow<__nv_bfloat16>(from_fp8_code(codes[column], rows.format) * unscale);
  }
}

}  // namespace

template <>
void RowCodeKernels<DeviceType::Cuda>::encode_rows(const Tensor& x, const RowEncoding& encoding, Tensor& codes) {
  if (x.numel() == 0) return;
  const CodedRows rows(x, encoding);
  const i64 blocks = x.dim(0) * rows.blocks;
  CudaDevice& device = cuda(x);
  launch(encode_row_blocks, grid_for(blocks * kWarp, kThreads, device), kThreads, 0, device.stream(),
         static_cast<const __nv_bfloat16*>(elements<BFloat16>(x)), rows, reinterpret_cast<u8*>(codes.data<i32>()),
         blocks);
}

template <>
void RowCodeKernels<DeviceType::Cuda>::decode_rows(const Tensor& codes, const RowEncoding& encoding, Tensor& x) {
  if (x.numel() == 0) return;
  CudaDevice& device = cuda(x);
  launch(decode_row_elements, grid_for(x.numel(), kThreads, device), kThreads, 0, device.stream(),
         reinterpret_cast<const u8*>(codes.data<i32>()), CodedRows(x, encoding), elements<BFloat16>(x), x.numel());
}

}  // namespace mcpp
