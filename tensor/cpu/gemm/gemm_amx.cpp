// bf16 GEMMs with AMX, after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication",
// 2008: all threads together pack a chunk of B (and of A, if it cannot be used in place), then take tasks of full 32 x
// 32 blocks of C. Each element of C is one fp32 sum over k in ascending order, wherever chunks and tasks end
// (intermediate sums are kept in fp32). The choice of sizes therefore does not change results, and tasks may be split
// to balance the threads.
#include <immintrin.h>

#include <algorithm>
#include <utility>

#include "base/integer_math.h"
#include "tensor/cpu/gemm/gemm.h"
#include "tensor/cpu/simd/amx.h"
#include "tensor/cpu/simd/avx512.h"
#include "tensor/tensor.h"

// GCC 12 warns about the undefined register used inside intrinsics (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16")

namespace mcpp::kernel {
namespace {

// Work between two packings: rows x columns of C, `depth` of k.
struct Chunk {
  i64 row = 0, rows = 0, column = 0, columns = 0, k = 0, depth = 0;
};

template <class C>
class AmxGemm {
 public:
  AmxGemm(CpuDevice& device, GemmSize size, Operand<BFloat16> a, Operand<BFloat16> b, float beta, C* c)
      : size_(size), a_(a), b_(b), beta_(beta), c_(c), threads_(device.threads()) {
    a_in_place_ = !a_.transposed && size_.k % kPanelStep == 0;
    choose_chunks();
    const auto workspace = [&](i64 count, DType type) {
      return Tensor::empty({count}, type, device, MemoryClass::Workspace);
    };
    const i64 a_panels = a_in_place_ ? 1 : ceil_div(chunk_.rows, kPanelWidth);
    const i64 b_panels = ceil_div(chunk_.columns, kPanelWidth);
    packed_a_ = workspace(a_panels * panel_size(chunk_.depth), DType::BF16);
    packed_b_ = workspace(b_panels * panel_size(chunk_.depth), DType::BF16);
    if (slice_ < size_.k) {
      sums_ = workspace(ceil_div(chunk_.rows, kPanelWidth) * b_panels * kBlockSize, DType::F32);
    }
  }

  void run() {
#pragma omp parallel num_threads(threads_)
    {
      const TileSession tiles;
      run_on_thread();
    }
  }

 private:
  void choose_chunks() {
    const i64 slices = ceil_div(size_.k, kDepth);
    chunk_.depth = round_up(ceil_div(size_.k, slices), kPanelStep);
    slice_ = chunk_.depth <= kMaxUnslicedDepth ? chunk_.depth : kSlice;
    chunk_.columns = std::min(size_.n, kColumns * 1024 / chunk_.depth / 32 * 32);
    chunk_.rows = a_in_place_ && slices == 1 ? size_.m : std::min(size_.m, kRows);
  }

  // Called by all threads together; every `omp for` ends with a barrier.
  void run_on_thread() {
    for (i64 row = 0; row < size_.m; row += chunk_.rows) {
      for (i64 column = 0; column < size_.n; column += chunk_.columns) {
        for (i64 k = 0; k < size_.k; k += chunk_.depth) {
          run_chunk({row, std::min(chunk_.rows, size_.m - row), column, std::min(chunk_.columns, size_.n - column), k,
                     std::min(chunk_.depth, size_.k - k)});
        }
      }
    }
  }

  void run_chunk(const Chunk& chunk) {
    // If a chunk covers all of k, the previous chunk packed the same panels, unless the column changed.
    const bool covers_k = chunk.depth == size_.k;
    const bool is_a_packed = covers_k && chunk.column > 0;
    const bool is_b_packed = covers_k && chunk.columns == size_.n && chunk.row > 0;
    const i64 a_all = a_in_place_ ? chunk.rows % kPanelWidth != 0 : ceil_div(chunk.rows, kPanelWidth);
    const i64 a_panels = is_a_packed ? 0 : a_all;
    const i64 b_panels = is_b_packed ? 0 : ceil_div(chunk.columns, kPanelWidth);
#pragma omp for schedule(static)
    for (i64 i = 0; i < a_panels + b_panels; ++i) {
      if (i < a_panels) {
        pack_a(chunk, i);
      } else {
        pack_b(chunk, i - a_panels);
      }
    }
    const i64 down = ceil_div(chunk.rows, kPanelWidth), step = task_columns(chunk, down);
#pragma omp for schedule(dynamic, 1)
    for (i64 t = 0; t < down * ceil_div(chunk.columns, step); ++t) {
      const i64 column = t / down * step;
      multiply(chunk, t % down * kPanelWidth, column, std::min(column + step, chunk.columns));
    }
  }

  // Returns the columns of a task, which has one panel of rows. Normally all columns of the chunk, so that C is written
  // along its rows and A's slice stays in the L1 cache; fewer if there are not enough tasks to balance the threads.
  i64 task_columns(const Chunk& chunk, i64 down) const {
    i64 columns = round_up(chunk.columns, kPanelWidth);
    while (down * ceil_div(chunk.columns, columns) < kTasksPerThread * threads_ && columns > kPanelWidth) {
      columns = round_up(columns / 2, kPanelWidth);
    }
    return columns;
  }

  void pack_a(const Chunk& chunk, i64 index) {
    const i64 row = a_in_place_ ? chunk.rows / kPanelWidth * kPanelWidth : index * kPanelWidth;
    pack_panel(PanelOf::A, a_.at(chunk.row + row, chunk.k), a_.ld, !a_.transposed, chunk.rows - row, chunk.depth,
               packed_a_.data<BFloat16>() + index * panel_size(chunk_.depth));
  }

  void pack_b(const Chunk& chunk, i64 index) {
    const i64 column = index * kPanelWidth;
    pack_panel(PanelOf::B, b_.at(chunk.k, chunk.column + column), b_.ld, b_.transposed, chunk.columns - column,
               chunk.depth, packed_b_.data<BFloat16>() + index * panel_size(chunk_.depth));
  }

  ATiles a_tiles(const Chunk& chunk, i64 row) const {
    if (!a_in_place_) return ATiles::packed(packed_a_.data<BFloat16>() + row / kPanelWidth * panel_size(chunk_.depth));
    if (chunk.rows - row < kPanelWidth) return ATiles::packed(packed_a_.data<BFloat16>());
    return ATiles::in_place(a_.at(chunk.row + row, chunk.k), a_.ld);
  }

  // Computes a task in slices of k, so that A's slice stays in the L1 cache while B's panels are read.
  void multiply(const Chunk& chunk, i64 row, i64 column_begin, i64 column_end) {
    for (i64 k = 0; k < chunk.depth; k += slice_) {
      for (i64 column = column_begin; column < column_end; column += kPanelWidth) multiply_at(chunk, k, row, column);
    }
  }

  void multiply_at(const Chunk& chunk, i64 k, i64 row, i64 column) {
    alignas(64) float block[kBlockSize];
    const i64 depth = std::min(slice_, chunk.depth - k);
    const bool first = chunk.k + k == 0, last = chunk.k + k + depth == size_.k;
    float* sums = nullptr;  // sums over earlier slices of k
    if (!first || !last) {
      const i64 across = ceil_div(chunk_.columns, kPanelWidth);
      sums = sums_.data<float>() + (row / kPanelWidth * across + column / kPanelWidth) * kBlockSize;
    }
    ATiles a = a_tiles(chunk, row);
    a.data += k / kPanelStep * a.step;
    const BFloat16* b = packed_b_.data<BFloat16>() + column / kPanelWidth * panel_size(chunk_.depth) + panel_size(k);
    multiply_block(a, b, ceil_div(depth, kPanelStep), first ? nullptr : sums, last ? block : sums);
    if (last) store(chunk, row, column, block);
  }

  void store(const Chunk& chunk, i64 row, i64 column, const float* block) const {
    const i64 rows = std::min(kPanelWidth, chunk.rows - row);
    C* c = c_ + (chunk.row + row) * size_.n + chunk.column + column;
    for (i64 i = 0; i < rows; ++i, c += size_.n, block += kPanelWidth) {
      store_row(c, chunk.columns - column, beta_, _mm512_load_ps(block), _mm512_load_ps(block + 16));
    }
  }

  // Measured on a Xeon with AMX and 2 MiB of L2 cache per core. A chunk of B fills half of the L2 cache: kDepth x
  // kColumns, or the same area in a different shape.
  static constexpr i64 kDepth = 1024, kColumns = 512;
  static constexpr i64 kRows = 4096;  // rows of a chunk when A is packed
  // Up to kMaxUnslicedDepth of k is one slice; more is split into slices of kSlice.
  static constexpr i64 kMaxUnslicedDepth = 384, kSlice = 256;
  static constexpr i64 kTasksPerThread = 4;

  GemmSize size_;
  Operand<BFloat16> a_, b_;
  float beta_;
  C* c_;
  int threads_;
  i64 slice_ = 0;
  bool c_transposed_ = false, a_in_place_ = !a_.transposed && size_.k % kPanelStep == 0;
  Chunk chunk_;  // maximum sizes
  Tensor packed_a_, packed_b_, sums_;
};

}  // namespace

template <class C>
void gemm_amx(CpuDevice& device, GemmSize size, Operand<BFloat16> a, Operand<BFloat16> b, float beta, C* c) {
  AmxGemm<C>(device, size, a, b, beta, c).run();
}

template void gemm_amx(CpuDevice&, GemmSize, Operand<BFloat16>, Operand<BFloat16>, float, float*);
template void gemm_amx(CpuDevice&, GemmSize, Operand<BFloat16>, Operand<BFloat16>, float, BFloat16*);

}  // namespace mcpp::kernel

#pragma GCC pop_options

#pragma GCC diagnostic pop
