// How products whose sums are in order are cut into blocks of c, each computed by one thread from copies of the parts
// of a and b that it needs: b in panels, a in strips of rows, some of k at a time. What a copy looks like, and what
// multiplies two, is a kernel's business.
#pragma once
#include <omp.h>

#include <algorithm>
#include <span>
#include <vector>

#include "tensor/cpu/gemm/gemm.h"
#include "tensor/tensor.h"

namespace mcpp::kernel {

/// Of a block of c at most; words of 32 bits along k, and rows, that are copied at a time. Measured on an EPYC with 1
/// MiB of second-level cache per core.
inline constexpr i64 kBlockRows = 512, kBlockColumns = 256, kWords = 384, kStripRows = 48;
/// Rows of a's copy, and panels of b's, do not begin on the same lines of the first-level cache.
inline constexpr i64 kRowStep = kWords + 16, kPanelApart = 16;
/// Columns of a panel of b at most: two vectors.
inline constexpr i64 kMostPanel = 32;
/// Of k, that are transposed at a time; and how far apart.
inline constexpr i64 kTransposed = 64, kTransposedStep = kTransposed + 4;

/// Room for the copies and sums of a block, in words of 32 bits. The copies fit the second-level cache.
struct alignas(64) BlockRoom {
  float a[kStripRows * kRowStep];
  float b[kBlockColumns * (kWords + kPanelApart)];
  float columns[kMostPanel * kTransposedStep];
  float sums[kBlockRows * kBlockColumns];
};

/// Computes a block. Inlined where the kernel is compiled for its instructions. The kernel has
///   kDepth: numbers along k that are kWords words;
///   kAddsLast: whether multiply() adds its own sums, when they are complete, to those that it accumulates;
///   width(): columns of a panel;
///   copy_panels(b, depth, columns, room): to room.b; returns words from one panel to the next;
///   copy_strip(a, rows, depth, to): returns words from one to the next of the first axis;
///   multiply(transposed, a, lda, b, c, ldc, rows, depth, accumulate): a strip with a panel;
///   write(x, sums, ld): x.c = sums + beta x.c.
template <class Kernel, class T, class C>
[[gnu::always_inline]] inline void compute_block(const Kernel& kernel, const Product<T, C>& x, BlockRoom& room) {
  const auto [m, n, k] = x.size;
  const i64 width = kernel.width();
  float* sums = room.sums;
  i64 ld = kBlockColumns;
  if constexpr (std::is_same_v<C, float>) {
    // Small products added one by one to a large sum would lose more than their sum does. The same for all blocks of a
    // product, wherever it was cut.
    if ((x.beta == 0 || Kernel::kAddsLast) && n % width == 0 && x.ldc % width == 0) sums = x.c, ld = x.ldc;
  }
  const bool is_direct = sums != room.sums, adds = is_direct && x.beta != 0;
  for (i64 at = 0; at < k; at += Kernel::kDepth) {
    const i64 depth = std::min(Kernel::kDepth, k - at);
    const i64 panel = kernel.copy_panels(Operand<T>{x.b.at(at, 0), x.b.ld, x.b.transposed}, depth, n, room);
    for (i64 row = 0; row < m; row += kStripRows) {
      const i64 rows = std::min(kStripRows, m - row);
      const i64 lda = kernel.copy_strip(Operand<T>{x.a.at(row, at), x.a.ld, x.a.transposed}, rows, depth, room.a);
      const float* b = room.b;
      for (i64 j = 0; j < n; j += width, b += panel)
        kernel.multiply(x.a.transposed, room.a, lda, b, sums + row * ld + j, ld, rows, depth, at > 0 || adds);
    }
  }
  if (!is_direct) kernel.write(x, sums, ld);
}

/// Blocks of at most kBlockRows x `columns` that make up the products.
template <class T, class C>
std::vector<Product<T, C>> blocks_of(std::span<const Product<T, C>> products, i64 columns) {
  std::vector<Product<T, C>> blocks;
  for (const Product<T, C>& x : products) {
    for (i64 column = 0; column < x.size.n; column += columns) {
      for (i64 row = 0; row < x.size.m; row += kBlockRows) {
        Product<T, C> block = x;
        block.size = {std::min(kBlockRows, x.size.m - row), std::min(columns, x.size.n - column), x.size.k};
        block.a.data = x.a.at(row, 0);
        block.b.data = x.b.at(0, column);
        block.c += row * x.ldc + column;
        blocks.push_back(block);
      }
    }
  }
  return blocks;
}

/// Enough of them to keep the threads equally busy, where there is so much to do.
template <class T, class C>
std::vector<Product<T, C>> blocks_for(std::span<const Product<T, C>> products, int threads) {
  constexpr i64 kLeastColumns = 64;
  i64 columns = kBlockColumns;
  std::vector<Product<T, C>> blocks = blocks_of(products, columns);
  while (threads > 1 && columns > kLeastColumns && static_cast<int>(blocks.size()) < 4 * threads)
    blocks = blocks_of(products, columns /= 2);
  return blocks;
}

/// Calls run(block, room) for all blocks of the products, on the device's threads.
template <class T, class C, class Run>
void run_blocks(CpuDevice& device, std::span<const Product<T, C>> products, Run&& run) {
  const std::vector<Product<T, C>> blocks = blocks_for(products, device.threads());
  const Tensor room = Tensor::empty({device.threads() * static_cast<i64>(sizeof(BlockRoom) / sizeof(float))},
                                    DType::F32, device, MemoryClass::Workspace);
  auto* rooms = static_cast<BlockRoom*>(room.raw());
#pragma omp parallel for num_threads(device.threads()) schedule(dynamic, 1) if (blocks.size() > 1)
  for (std::size_t i = 0; i < blocks.size(); ++i) run(blocks[i], rooms[omp_get_thread_num()]);
}

}  // namespace mcpp::kernel
