// bf16 products with AMX, after Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008: a
// chunk of B (and of A, where it cannot be used in place) is packed by all threads together, then they take tasks of
// whole 32 x 32 blocks of C. Each element of C is one fp32 sum over k in ascending order, wherever chunks and tasks end
// (sums on the way are kept in fp32), so no choice of sizes changes a bit and tasks may be cut to suit the threads.
#include <immintrin.h>

#include <algorithm>
#include <utility>

#include "tensor/cpu/amx.h"
#include "tensor/cpu/avx512.h"
#include "tensor/cpu/gemm.h"
#include "tensor/tensor.h"

// GCC 12 takes the undefined register that intrinsics start from for a mistake (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16,prfchw")

namespace mcpp::kernel {
namespace {

constexpr i64 ceil_div(i64 a, i64 b) {
  return (a + b - 1) / b;
}

void store_row(float* c, i64 columns, float beta, __m512 left, __m512 right) {
  const __mmask16 l = first16(columns), r = first16(columns - 16);
  if (beta != 0) {
    left = _mm512_add_ps(left, _mm512_maskz_loadu_ps(l, c));
    right = _mm512_add_ps(right, _mm512_maskz_loadu_ps(r, c + 16));
  }
  _mm512_mask_storeu_ps(c, l, left);
  _mm512_mask_storeu_ps(c + 16, r, right);
}

__m512 widen(__m256i x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

void store_row(BFloat16* c, i64 columns, float beta, __m512 left, __m512 right) {
  if (beta != 0) {
    left = _mm512_add_ps(left, widen(_mm256_maskz_loadu_epi16(first16(columns), c)));
    right = _mm512_add_ps(right, widen(_mm256_maskz_loadu_epi16(first16(columns - 16), c + 16)));
  }
  _mm512_mask_storeu_epi16(c, first32(columns), (__m512i)_mm512_cvtne2ps_pbh(right, left));
}

// Transposes a block in place, by quarters.
void transpose_block(float* block) {
  const auto load = [&](i64 quarter, __m512i(&r)[16]) __attribute__((always_inline)) {
    for (i64 i = 0; i < 16; ++i) r[i] = _mm512_load_si512(block + quarter + 32 * i);
    transpose16(r);
  };
  const auto store = [&](i64 quarter, const __m512i(&r)[16]) __attribute__((always_inline)) {
    for (i64 i = 0; i < 16; ++i) _mm512_store_si512(block + quarter + 32 * i, r[i]);
  };
  __m512i upper[16], lower[16];
  for (i64 diagonal : {0, 528}) {
    load(diagonal, upper);
    store(diagonal, upper);
  }
  load(16, upper);
  load(512, lower);
  store(512, upper);
  store(16, lower);
}

// What is computed between two packings: rows x columns of C, `depth` of k.
struct Chunk {
  i64 row = 0, rows = 0, column = 0, columns = 0, k = 0, depth = 0;
};

template <class C>
class AmxGemm {
 public:
  AmxGemm(CpuDevice& device, GemmSize size, Operand<BFloat16> a, Operand<BFloat16> b, float beta, C* c)
      : size_(size), a_(a), b_(b), beta_(beta), c_(c), ldc_(size.n), threads_(device.threads()) {
    if (better_transposed()) transpose();
    a_in_place_ = !a_.transposed && size_.k % kPanelStep == 0;
    choose_chunks();
    const auto workspace = [&](i64 count, DType type) {
      return Tensor::empty({count}, type, device, MemoryClass::Workspace);
    };
    const i64 a_panels = a_in_place_ ? 1 : ceil_div(chunk_.rows, kPanelWidth);
    const i64 b_panels = ceil_div(chunk_.columns, kPanelWidth);
    packed_a_ = workspace(a_panels * panel_size(chunk_.depth), DType::BF16);
    packed_b_ = workspace(b_panels * panel_size(chunk_.depth), DType::BF16);
    if (chunk_.depth < size_.k) {
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
  // C^T = B^T A^T is the same product. A operand that lies along m must be transposed while it is packed as A, and only
  // interleaved, which is cheaper, when it is packed as B.
  bool better_transposed() const {
    return a_.transposed && (b_.transposed || size_.m > size_.n);
  }

  void transpose() {
    std::swap(size_.m, size_.n);
    std::swap(a_, b_);
    a_.transposed = !a_.transposed;
    b_.transposed = !b_.transposed;
    c_transposed_ = true;
  }

  void choose_chunks() {
    const i64 slices = ceil_div(size_.k, kDepth);
    chunk_.depth = ceil_div(ceil_div(size_.k, slices), kPanelStep) * kPanelStep;
    chunk_.columns = std::min(size_.n, kColumns);
    chunk_.rows = a_in_place_ && slices == 1 ? size_.m : std::min(size_.m, kRows);
  }

  // The team calls this together; every `omp for` ends with a barrier.
  void run_on_thread() {
    for (i64 column = 0; column < size_.n; column += chunk_.columns) {
      for (i64 row = 0; row < size_.m; row += chunk_.rows) {
        for (i64 k = 0; k < size_.k; k += chunk_.depth) {
          run_chunk({row, std::min(chunk_.rows, size_.m - row), column, std::min(chunk_.columns, size_.n - column), k,
                     std::min(chunk_.depth, size_.k - k)});
        }
      }
    }
  }

  void run_chunk(const Chunk& chunk) {
    const bool b_is_packed = chunk.depth == size_.k && chunk.row > 0;
    const i64 a_panels = a_in_place_ ? chunk.rows % kPanelWidth != 0 : ceil_div(chunk.rows, kPanelWidth);
    const i64 b_panels = b_is_packed ? 0 : ceil_div(chunk.columns, kPanelWidth);
#pragma omp for schedule(static)
    for (i64 i = 0; i < a_panels + b_panels; ++i) {
      if (i < a_panels) {
        pack_a(chunk, i);
      } else {
        pack_b(chunk, i - a_panels);
      }
    }
    const auto [task_rows, task_columns] = task_size(chunk);
    const i64 down = ceil_div(chunk.rows, task_rows), across = ceil_div(chunk.columns, task_columns);
#pragma omp for schedule(dynamic, 1)
    for (i64 t = 0; t < down * across; ++t) {
      const i64 row = t % down * task_rows, column = t / down * task_columns;
      multiply(chunk, row, std::min(row + task_rows, chunk.rows), column,
               std::min(column + task_columns, chunk.columns));
    }
  }

  // Rows and columns of a task: a part of A that stays in the second-level cache while panels of B pass, cut smaller
  // until there are enough tasks to keep the threads equally busy.
  std::pair<i64, i64> task_size(const Chunk& chunk) const {
    i64 rows = kTaskRows, columns = ceil_div(chunk.columns, kPanelWidth) * kPanelWidth;
    while (ceil_div(chunk.rows, rows) * ceil_div(chunk.columns, columns) < kTasksPerThread * threads_ &&
           (rows > kPanelWidth || columns > kPanelWidth)) {
      i64& longer = rows >= columns ? rows : columns;
      longer = ceil_div(longer / 2, kPanelWidth) * kPanelWidth;
    }
    return {rows, columns};
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

  // A task. B's panel is used for all of the rows while it is in the first-level cache.
  void multiply(const Chunk& chunk, i64 row_begin, i64 row_end, i64 column_begin, i64 column_end) {
    for (i64 column = column_begin; column < column_end; column += kPanelWidth) {
      for (i64 row = row_begin; row < row_end; row += kPanelWidth) multiply_at(chunk, row, column);
    }
  }

  void multiply_at(const Chunk& chunk, i64 row, i64 column) {
    alignas(64) float block[kBlockSize];
    const bool first = chunk.k == 0, last = chunk.k + chunk.depth == size_.k;
    float* sums = nullptr;  // of earlier slices of k
    if (!first || !last) {
      const i64 across = ceil_div(chunk_.columns, kPanelWidth);
      sums = sums_.data<float>() + (row / kPanelWidth * across + column / kPanelWidth) * kBlockSize;
    }
    const BFloat16* b = packed_b_.data<BFloat16>() + column / kPanelWidth * panel_size(chunk_.depth);
    if (last) prefetch(chunk, row, column);
    multiply_block(a_tiles(chunk, row), b, ceil_div(chunk.depth, kPanelStep), first ? nullptr : sums,
                   last ? block : sums);
    if (last) store(chunk, row, column, block);
  }

  // Position and size in C of the block at a row and column of the chunk.
  struct Place {
    C* c;
    i64 rows, columns;
  };
  Place place(const Chunk& chunk, i64 row, i64 column) const {
    const i64 i = chunk.row + row, j = chunk.column + column;
    const i64 rows = std::min(kPanelWidth, chunk.rows - row), columns = std::min(kPanelWidth, chunk.columns - column);
    if (c_transposed_) return {c_ + j * ldc_ + i, columns, rows};
    return {c_ + i * ldc_ + j, rows, columns};
  }

  // Without this the stores wait for C to come from memory, as long as the product itself takes.
  void prefetch(const Chunk& chunk, i64 row, i64 column) const {
    const Place to = place(chunk, row, column);
    for (i64 i = 0; i < to.rows; ++i) {
      for (i64 j = 0; j < to.columns; j += 64 / static_cast<i64>(sizeof(C))) _m_prefetchw(to.c + i * ldc_ + j);
    }
  }

  void store(const Chunk& chunk, i64 row, i64 column, float* block) const {
    if (c_transposed_) transpose_block(block);
    const Place to = place(chunk, row, column);
    for (i64 i = 0; i < to.rows; ++i) {
      store_row(to.c + i * ldc_, to.columns, beta_, _mm512_load_ps(block + 32 * i),
                _mm512_load_ps(block + 32 * i + 16));
    }
  }

  static constexpr i64 kDepth = 1024;    // of k in a chunk
  static constexpr i64 kColumns = 3072;  // of C in a chunk
  static constexpr i64 kRows = 4096;     // of C in a chunk when A is packed
  static constexpr i64 kTaskRows = 256;
  static constexpr i64 kTasksPerThread = 4;

  GemmSize size_;
  Operand<BFloat16> a_, b_;
  float beta_;
  C* c_;
  i64 ldc_;
  int threads_;
  bool c_transposed_ = false, a_in_place_ = false;
  Chunk chunk_;  // the largest sizes
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
