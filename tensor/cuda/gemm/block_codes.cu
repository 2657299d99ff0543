#include "tensor/cuda/gemm/block_codes.h"
#include "tensor/cuda/gemm/fp8_code.cuh"
#include "tensor/cuda/philox.cuh"
#include "tensor/ops/dropout.h"
#include "tensor/ops/low_precision/float_codes.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// A thread block encodes a tile, whose rows consist of units that a thread encodes.
constexpr int kThreads = 256, kTile = 128, kUnit = 16, kUnitsOfRow = kTile / kUnit;
constexpr int kRowPadding = 8;  // elements, against bank conflicts
using Tile = u16[kTile][kTile + kRowPadding];

/// bf16 matrix [rows, columns], or its transpose in memory.
struct Source {
  const u16* x;
  i64 rows, columns;
  bool is_transposed;
};

/// Loads a tile through packs along the rows of the matrix in memory. Elements outside of the matrix are 0.
template <int kPack>
__device__ void load_tile(const Source& source, i64 first_row, i64 first_column, Tile& tile) {
  constexpr int kPacksOfRow = kTile / kPack;
  for (int i = threadIdx.x; i < kTile * kPacksOfRow; i += kThreads) {
    const int outer = i / kPacksOfRow, inner = i % kPacksOfRow * kPack;
    const int r = source.is_transposed ? inner : outer, c = source.is_transposed ? outer : inner;
    const i64 row = first_row + r, column = first_column + c;
    Pack<u16, kPack> pack{};
    if (row < source.rows && column < source.columns)
      pack = load_pack<kPack>(source.x +
                              (source.is_transposed ? column * source.rows + row : row * source.columns + column));
#pragma unroll
    for (int k = 0; k < kPack; ++k) (source.is_transposed ? tile[r + k][c] : tile[r][c + k]) = pack.values[k];
  }
}

/// Random words of stochastic rounding (struct StochasticRounding).
struct RandomWords {
  u64 key;
  PositionRanges positions;
  const i64* samples;
  const ColumnRun* runs;
  i64 batch, run_count;

  /// Returns the word of an element of x. Four words are drawn together; `drawn` caches the words of `drawn_block`.
  __device__ __forceinline__ u32 at(i64 row, i64 column, i64& drawn_block, Philox4& drawn) const {
    i64 run = 0;
    while (run + 1 < run_count && column >= runs[run + 1].first) ++run;
    const i64 global = runs[run].global + column - runs[run].first;
    if (global / 4 != drawn_block) {
      drawn = philox4x32(key, dropout_counter(samples[row % batch], positions.at(row / batch), global / 4));
      drawn_block = global / 4;
    }
    return word_of(drawn, global % 4);
  }
};

/// Factor of the elements of a block before rounding, and the scale of the block in memory.
template <class Scale>
struct BlockFactor {
  float factor;
  Scale scale;
};

/// Encodes units in fp8 with a scale for kScaleRows x columns_per_scale(kScales) elements: fp32 or E8M0.
template <BlockScales kScales>
struct Fp8Encoder {
  using Scale = std::conditional_t<has_fp32_scales(kScales), float, u8>;
  static constexpr int kRows = kScales == BlockScales::Square128 ? 128 : 1;
  static constexpr int kColumns = columns_per_scale(kScales);
  static constexpr bool kRepeatsScale = false;
  using Codes = Pack<u8, kUnit>;

  Fp8Format format;

  __device__ __forceinline__ BlockFactor<Scale> factor(float largest) const {
    const float scale = fp8_scale(format, largest), unscale = 1 / scale;
    if constexpr (has_fp32_scales(kScales))
      return {scale, unscale};
    else  // both formats have the exponent bias 127, and NaN has the largest exponent
      return {scale, static_cast<u8>(std::bit_cast<u32>(unscale) >> 23)};
  }
  __device__ __forceinline__ Codes encode(const u16* unit, float factor, const Source&, i64, i64) const {
    Codes codes;
#pragma unroll
    for (int k = 0; k < kUnit; ++k)
      codes.values[k] = to_fp8_code(std::bit_cast<float>(u32{unit[k]} << 16) * factor, format);
    return codes;
  }
};

/// Encodes units in NVFP4 in the order of operations of the CPU. kBlockRows: 1 or 16.
template <int kBlockRows, bool kStochastic>
struct Nvfp4Encoder {
  using Scale = u8;
  static constexpr int kRows = kBlockRows, kColumns = kNvfp4Block;
  static constexpr bool kRepeatsScale = true;  // GEMMs read a scale per row
  using Codes = Pack<u8, kUnit / 2>;

  const float* amax;
  float headroom;
  RandomWords random;

  /// Scales are normal E4M3 values: rounds to 3 fraction bits, ties to even.
  __device__ __forceinline__ BlockFactor<u8> factor(float largest) const {
    const float matrix_scale = nvfp4_matrix_scale(*amax, headroom);
    if (isnan(matrix_scale)) return {matrix_scale, kFp8Nan};
    const float exact = __fdiv_rn(__fdiv_rn(largest, kE2m1Max), matrix_scale);
    const u32 bits = std::bit_cast<u32>(fminf(fmaxf(exact, kNvfp4MinScale), kNvfp4MaxScale));
    const u32 rounded = (bits + (bits >> 20 & 1) + (u32{1} << 19) - 1) >> 20;
    const float scale = std::bit_cast<float>(rounded << 20);
    constexpr u32 kBiases = 127 - 7;  // of fp32 and E4M3
    return {__fdiv_rn(__fdiv_rn(1, matrix_scale), scale), static_cast<u8>(rounded - (kBiases << 3))};
  }
  /// Returns the code of a magnitude; with `word`, rounds up with a probability proportional to the distance from the
  /// lower value.
  static __device__ __forceinline__ u32 round(float magnitude, u32 word) {
    const float per_step = magnitude < 2 ? 2.0f : magnitude < 4 ? 1.0f : 0.5f;
    const u32 lower_codes = magnitude < 2 ? 0 : magnitude < 4 ? 2 : 4;
    const float steps = magnitude * per_step, below = floorf(steps);
    const float rounded =
        kStochastic ? below + (static_cast<float>(word >> 8) * 0x1p-24f < steps - below ? 1 : 0) : rintf(steps);
    return static_cast<u32>(rounded) + lower_codes;
  }
  __device__ __forceinline__ Codes encode(const u16* unit, float factor, const Source& source, i64 row,
                                          i64 column) const {
    Codes codes{};
    i64 drawn_block = -1, drawn_row = -1;
    Philox4 drawn{};
#pragma unroll
    for (int k = 0; k < kUnit; ++k) {
      u32 word = 0;
      if constexpr (kStochastic) {
        const i64 x_row = source.is_transposed ? column + k : row, x_column = source.is_transposed ? row : column + k;
        if (x_row != drawn_row) drawn_block = -1, drawn_row = x_row;
        if (column + k < source.columns) word = random.at(x_row, x_column, drawn_block, drawn);
      }
      const float x = std::bit_cast<float>(u32{unit[k]} << 16);
      const u32 code = round(fminf(fabsf(x) * factor, kE2m1Max), word) | (unit[k] >> 15) << 3;
      codes.values[k / 2] = static_cast<u8>(codes.values[k / 2] | code << (k % 2 * 4));
    }
    return codes;
  }
};

/// Encodes a tile of `source`: rows are along x, as grids have at most 65535 blocks along y.
template <class Encoder, int kPack>
__global__ void __launch_bounds__(kThreads)
    encode_tiles(const Source source, const __grid_constant__ Encoder encoder, const EncodedShape shape, u8* codes,
                 typename Encoder::Scale* scales) {
  constexpr int kBlocksOfRow = kTile / Encoder::kColumns, kBlocks = kTile / Encoder::kRows * kBlocksOfRow;
  MCPP_SHARED(Tile, tile);
  MCPP_SHARED(int[kBlocks], largest);
  const i64 first_row = i64{blockIdx.x} * kTile, first_column = i64{blockIdx.y} * kTile;
  const auto block_of = [](int row, int column) {
    return row / Encoder::kRows * kBlocksOfRow + column / Encoder::kColumns;
  };
  for (int i = threadIdx.x; i < kBlocks; i += kThreads) largest[i] = 0;
  load_tile<kPack>(source, first_row, first_column, tile);
  __syncthreads();
  for (int i = threadIdx.x; i < kTile * kUnitsOfRow; i += kThreads) {
    const int row = i / kUnitsOfRow, column = i % kUnitsOfRow * kUnit;
    int magnitude = 0;  // bits without the sign are ordered by magnitude, with non-finite values above all
    for (int k = 0; k < kUnit; ++k) magnitude = max(magnitude, tile[row][column + k] & 0x7FFF);
    if constexpr (kBlocks == 1) magnitude = warp_max(magnitude);
    if (kBlocks > 1 || threadIdx.x % kWarp == 0) atomicMax(&largest[block_of(row, column)], magnitude);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTile * kUnitsOfRow; i += kThreads) {
    const int r = i / kUnitsOfRow, c = i % kUnitsOfRow * kUnit;
    const i64 row = first_row + r, column = first_column + c;
    if (row >= shape.rows || column >= shape.columns) continue;
    const u32 bits = static_cast<u32>(largest[block_of(r, c)]) << 16;
    const auto block = encoder.factor(std::bit_cast<float>(bits));
    const auto unit = encoder.encode(&tile[r][c], block.factor, source, row, column);
    store_pack(codes + row * shape.code_bytes_of_row() + column / kUnit * static_cast<i64>(sizeof(unit)), unit);
    const bool is_first_row = Encoder::kRepeatsScale || r % Encoder::kRows == 0;
    if (is_first_row && c % Encoder::kColumns == 0)
      scales[shape.scale_index(row, column / Encoder::kColumns)] = block.scale;
  }
}

/// Returns the value of an E2M1 code without its sign.
__device__ __forceinline__ float e2m1_magnitude(u32 code) {
  const auto x = static_cast<float>(code);
  return code < 4 ? x / 2 : code < 6 ? x - 2 : (x - 4) * 2;
}

__device__ __forceinline__ float decoded(const EncodedShape& shape, Fp8Format format, const u8* codes,
                                         const void* scales, i64 row, i64 column) {
  const i64 scale = shape.scale_index(row, column / columns_per_scale(shape.scales));
  const u8* codes_of_row = codes + row * shape.code_bytes_of_row();
  if (shape.scales == BlockScales::Vector16) {
    const u32 code = codes_of_row[column / 2] >> (column % 2 * 4) & 0xF;
    const float x = e2m1_magnitude(code & 7) * from_fp8_code(static_cast<const u8*>(scales)[scale], Fp8Format::E4M3);
    return code & 8 ? -x : x;
  }
  const float x = from_fp8_code(codes_of_row[column], format);
  if (has_fp32_scales(shape.scales)) return x * static_cast<const float*>(scales)[scale];
  return x * from_e8m0(static_cast<const u8*>(scales)[scale]);
}

/// Writes y [rows, columns], or [columns, rows] if `transposed`.
__global__ void __launch_bounds__(kThreads) decode_elements(const EncodedShape shape, Fp8Format format, const u8* codes,
                                                            const void* scales, bool transposed, __nv_bfloat16* y) {
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  const i64 width = transposed ? shape.rows : shape.columns, count = shape.rows * shape.columns;
  for (i64 i = first; i < count; i += step) {
    const i64 outer = i / width, inner = i % width;
    const float x = decoded(shape, format, codes, scales, transposed ? inner : outer, transposed ? outer : inner);
    y[i] = narrow<__nv_bfloat16>(x);
  }
}

/// Memory of an encoded matrix.
struct Destination {
  EncodedShape shape;
  u8* codes;
  void* scales;
  const CudaDevice& device;
};

template <class Encoder>
void encode(const Source& source, const Encoder& encoder, const Destination& to) {
  const auto tiles = [](i64 size) { return static_cast<unsigned>(ceil_div(size, kTile)); };
  const dim3 grid(tiles(source.rows), tiles(source.columns));
  auto* scales = static_cast<typename Encoder::Scale*>(to.scales);
  const cudaStream_t stream = to.device.stream();
  constexpr int kPack = 8;
  const i64 width = source.is_transposed ? source.rows : source.columns;
  if (width % kPack == 0 && is_pack_aligned<kPack>(source.x))
    launch(encode_tiles<Encoder, kPack>, grid, kThreads, 0, stream, source, encoder, to.shape, to.codes, scales);
  else
    launch(encode_tiles<Encoder, 1>, grid, kThreads, 0, stream, source, encoder, to.shape, to.codes, scales);
}

void encode_fp8(const Source& source, Fp8Format format, const Destination& to) {
  switch (to.shape.scales) {
    case BlockScales::Vector128:
      return encode(source, Fp8Encoder<BlockScales::Vector128>{format}, to);
    case BlockScales::Square128:
      return encode(source, Fp8Encoder<BlockScales::Square128>{format}, to);
    case BlockScales::Vector32:
      return encode(source, Fp8Encoder<BlockScales::Vector32>{format}, to);
    case BlockScales::Vector16:
      break;
  }
  fail(ExitCode::Internal, "fp8 has no blocks of 16 elements");
}

/// Returns the kind of blocks [rows, columns] of a matrix, or of the transpose of a matrix with these blocks.
BlockScales kind_of(const BlockShape& block, bool transposed) {
  const i64 rows = transposed ? block.columns : block.rows, columns = transposed ? block.rows : block.columns;
  if (rows == 128 && columns == 128) return BlockScales::Square128;
  MCPP_CHECK(rows == 1 && (columns == 128 || columns == 32), "no kernel for blocks of ", rows, " x ", columns);
  return columns == 128 ? BlockScales::Vector128 : BlockScales::Vector32;
}

/// Samples and runs of columns on the GPU, in this order, and the RandomWords that read them.
struct RandomTables {
  Tensor memory;
  RandomWords words;

  RandomTables(const StochasticRounding& random, Device& device)
      : words{.key = random.key,
              .positions = random.positions,
              .samples = nullptr,
              .runs = nullptr,
              .batch = std::ssize(random.samples),
              .run_count = std::ssize(random.columns)} {
    static_assert(sizeof(ColumnRun) == 3 * sizeof(i64));
    std::vector<i64> values = random.samples;
    for (const ColumnRun& run : random.columns) values.insert(values.end(), {run.first, run.global, run.count});
    memory = Tensor::empty({std::ssize(values)}, DType::I64, device, MemoryClass::Workspace);
    write_values(values, memory);
    words.samples = memory.data<i64>();
    words.runs = reinterpret_cast<const ColumnRun*>(words.samples + words.batch);
  }
};

void encode_nvfp4(const Source& source, const Nvfp4Scale& scale, const Destination& to) {
  const float* amax = scale.amax.data<float>();
  const bool is_square = scale.block.rows == kNvfp4Block && scale.block.columns == kNvfp4Block;
  if (scale.stochastic) {
    MCPP_CHECK(!is_square, "no kernel for stochastic rounding of squares");
    const RandomTables tables(*scale.stochastic, scale.amax.device());
    encode(source, Nvfp4Encoder<1, true>{amax, scale.headroom, tables.words}, to);
  } else if (is_square) {
    encode(source, Nvfp4Encoder<kNvfp4Block, false>{amax, scale.headroom, {}}, to);
  } else {
    encode(source, Nvfp4Encoder<1, false>{amax, scale.headroom, {}}, to);
  }
}

}  // namespace

BlockCodes::BlockCodes(const Tensor& x, BlockScales scales, Fp8Format format, bool transposed)
    : shape_{scales, x.dim(transposed ? 1 : 0), x.dim(transposed ? 0 : 1)},
      format_(format),
      codes_(shape_.rows * shape_.code_bytes_of_row(), cuda(x), MemoryClass::Workspace),
      scales_(shape_.scale_bytes(), cuda(x), MemoryClass::Workspace) {
  if (!shape_.has_padded_scales()) return;
  const auto bytes = static_cast<std::size_t>(shape_.scale_bytes());
  check_cuda(cudaMemsetAsync(scales_.data(), 0, bytes, device().stream()), "cudaMemsetAsync");
}

BlockCodes::BlockCodes(const Tensor& x, const Fp8Scale& scale, bool transposed)
    : BlockCodes(x, kind_of(scale.block, transposed), scale.format, transposed) {
  if (x.numel() == 0) return;
  encode_fp8({static_cast<const u16*>(x.raw()), shape_.rows, shape_.columns, transposed}, format_,
             {shape_, reinterpret_cast<u8*>(codes_.data()), scales_.data(), device()});
}

BlockCodes::BlockCodes(const Tensor& x, const Nvfp4Scale& scale, bool transposed)
    : BlockCodes(x, BlockScales::Vector16, Fp8Format::E4M3, transposed) {
  const BlockShape& block = scale.block;
  const i64 rows = transposed ? block.columns : block.rows, columns = transposed ? block.rows : block.columns;
  MCPP_CHECK(columns == kNvfp4Block && (rows == 1 || rows == kNvfp4Block), "no kernel for blocks of ", rows, " x ",
             columns);
  if (x.numel() == 0) return;
  encode_nvfp4({static_cast<const u16*>(x.raw()), shape_.rows, shape_.columns, transposed}, scale,
               {shape_, reinterpret_cast<u8*>(codes_.data()), scales_.data(), device()});
}

void BlockCodes::decode(Tensor& y, bool transposed) const {
  if (y.numel() == 0) return;
  launch(decode_elements, grid_for(y.numel(), kThreads, device()), kThreads, 0, device().stream(), shape_, format_,
         reinterpret_cast<const u8*>(codes_.data()), static_cast<const void*>(scales_.data()), transposed,
         elements<BFloat16>(y));
}

}  // namespace mcpp
