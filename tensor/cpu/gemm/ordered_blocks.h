// How products whose sums are in order are cut into blocks of c, each computed by one thread from copies of the parts
// of a and b that it needs: b in panels, a in strips of rows, some of k at a time. What a copy looks like, and what
// multiplies two, is a kernel's business.
#pragma once
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <span>
#include <vector>

#include "tensor/cpu/gemm/ahead.h"
#include "tensor/cpu/gemm/gemm.h"
#include "tensor/tensor.h"

namespace mcpp::kernel {

/// Of a block of c at most; words of 32 bits along k, and rows, that are copied at a time. Measured on an EPYC with 48
/// KiB of first- and 1 MiB of second-level cache per core: a panel and the rows that meet it fit the first; the copies,
/// what is asked for ahead of them, and the sums the second.
inline constexpr i64 kBlockRows = 512, kBlockColumns = 256, kWords = 192, kStripRows = 64;
/// Rows of a's copy, and panels of b's, do not begin on the same lines of the first-level cache.
inline constexpr i64 kRowStep = kWords + 16, kPanelApart = 16;
/// Columns of a panel of b at most: two vectors.
inline constexpr i64 kMostPanel = 32;
/// Of k, that are transposed at a time; and how far apart.
inline constexpr i64 kTransposed = 64, kTransposedStep = kTransposed + 4;

/// Room for the copies and sums of a block, in words of 32 bits.
struct alignas(64) BlockRoom {
  float a[kStripRows * kRowStep];
  float b[kBlockColumns * (kWords + kPanelApart)];
  float columns[kMostPanel * kTransposedStep];
  float sums[kBlockRows * kBlockColumns];
};

/// A block, and what its thread computes next; null when there is nothing.
template <class T, class C>
struct Turn {
  const Product<T, C>* block;
  const Product<T, C>* next = nullptr;
  bool has_panels = false;  ///< b is whole in the room already
};

/// A strip of a times a panel of b, for one part of k.
template <class C>
struct Strip {
  bool a_is_transposed = false;
  const float *a = nullptr, *b = nullptr;
  float* sums = nullptr;  ///< of the parts before
  i64 ld = 0;
  i64 rows = 0, depth = 0;
  bool is_first = true, is_last = true;  ///< part of k
  C* c = nullptr;
  i64 ldc = 0, columns = 0;  ///< of c, from here to the end of the block: a panel may have more or fewer
  float beta = 0;
};

/// Of k that is summed before the next of it is copied: equal parts, or all.
template <class Kernel>
i64 depth_of(i64 k) {
  constexpr i64 kStep = 32;
  const i64 parts = (k + Kernel::kDepth - 1) / Kernel::kDepth;
  return parts <= 1 ? k : (k + parts * kStep - 1) / (parts * kStep) * kStep;
}

template <class T>
Operand<T> part_of(const Operand<T>& x, i64 row, i64 column) {
  return {x.at(row, column), x.ld, x.transposed};
}

/// What is copied after the strip at `row` of the part of k at `at`: the next strip, and a share of the next panels.
template <class Kernel, class T, class C>
void look_ahead(const Turn<T, C>& turn, i64 at, i64 row, Ahead& ahead) {
  const Product<T, C>& x = *turn.block;
  const i64 m = x.size.m, depth = depth_of<Kernel>(x.size.k), strips = (m + kStripRows - 1) / kStripRows;
  const bool is_last_strip = row + kStripRows >= m, is_last_part = at + depth >= x.size.k;
  const auto add_strip = [&](const Product<T, C>& from, i64 from_row, i64 from_at) {
    ahead.add(part_of(from.a, from_row, from_at), std::min(kStripRows, from.size.m - from_row),
              std::min(depth_of<Kernel>(from.size.k), from.size.k - from_at));
  };
  const auto add_panels = [&](const Product<T, C>& from, i64 from_at) {
    ahead.add(part_of(from.b, from_at, 0), std::min(depth_of<Kernel>(from.size.k), from.size.k - from_at), from.size.n,
              row / kStripRows, strips);
  };
  if (!is_last_strip)
    add_strip(x, row + kStripRows, at);
  else if (!is_last_part)
    add_strip(x, 0, at + depth);
  else if (turn.next)
    add_strip(*turn.next, 0, 0);
  if (!is_last_part)
    add_panels(x, at + depth);
  else if (turn.next && (turn.next->b.data != x.b.data || depth < x.size.k))
    add_panels(*turn.next, 0);
}

/// Computes a block. Inlined where the kernel is compiled for its instructions. The kernel has
///   kDepth: numbers along k that are kWords words;
///   kWritesTiles: whether multiply() writes complete sums to strip.c, converted and added to what is there. Otherwise
///     it leaves them in strip.sums, which may be c itself: then `adds` has it add its own to those there;
///   width(): columns of a panel;
///   steps(rows, columns, depth): turns of its loops over k, for a strip;
///   copy_panels(b, depth, columns, room, is_done): to room.b; returns words from one panel to the next;
///   copy_strip(a, rows, depth, to): rows kRowStep apart, or if a lies transposed numbers along k kStripRows;
///   multiply(strip, adds, ahead);
///   write(x, sums, ld): x.c = sums + beta x.c; needed without kWritesTiles.
template <class Kernel, class T, class C>
[[gnu::always_inline]] inline void compute_block(const Kernel& kernel, const Turn<T, C>& turn, BlockRoom& room) {
  const Product<T, C>& x = *turn.block;
  const auto [m, n, k] = x.size;
  const i64 width = kernel.width(), part = depth_of<Kernel>(k);
  Strip<C> strip{
      .a_is_transposed = x.a.transposed, .sums = room.sums, .ld = kBlockColumns, .ldc = x.ldc, .beta = x.beta};
  bool is_direct = Kernel::kWritesTiles;
  if constexpr (std::is_same_v<C, float> && !Kernel::kWritesTiles) {
    // The same for all blocks of a product, wherever it was cut.
    if (n % width == 0 && x.ldc % width == 0) is_direct = true, strip.sums = x.c, strip.ld = x.ldc;
  }
  float* const first_sums = strip.sums;
  for (i64 at = 0; at < k; at += part) {
    strip.depth = std::min(part, k - at);
    strip.is_first = at == 0, strip.is_last = at + part >= k;
    const i64 panel = kernel.copy_panels(part_of(x.b, at, 0), strip.depth, n, room, turn.has_panels);
    for (i64 row = 0; row < m; row += kStripRows) {
      strip.rows = std::min(kStripRows, m - row);
      Ahead ahead;
      look_ahead<Kernel>(turn, at, row, ahead);
      ahead.spread(kernel.steps(strip.rows, n, strip.depth));
      kernel.copy_strip(part_of(x.a, row, at), strip.rows, strip.depth, room.a);
      strip.a = room.a, strip.b = room.b;
      for (i64 j = 0; j < n; j += width, strip.b += panel) {
        strip.sums = first_sums + row * strip.ld + j;
        strip.c = x.c + row * x.ldc + j, strip.columns = n - j;
        const C* next = j + width < n          ? strip.c + width
                        : row + kStripRows < m ? x.c + (row + kStripRows) * x.ldc
                        : turn.next            ? turn.next->c
                                               : strip.c;
        ahead.set_next_sums(is_direct && strip.is_last ? (next - strip.c) * i64{sizeof(C)} : 0);
        kernel.multiply(strip, is_direct && x.beta != 0, ahead);
      }
    }
  }
  if constexpr (!Kernel::kWritesTiles) {
    if (!is_direct) kernel.write(x, room.sums, kBlockColumns);
  }
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

/// Calls run(turn, room) for all blocks of the products, on the device's threads.
template <class T, class C, class Run>
void run_blocks(CpuDevice& device, std::span<const Product<T, C>> products, i64 depth, Run&& run) {
  const std::vector<Product<T, C>> blocks = blocks_for(products, device.threads());
  const Tensor room = Tensor::empty({device.threads() * static_cast<i64>(sizeof(BlockRoom) / sizeof(float))},
                                    DType::F32, device, MemoryClass::Workspace);
  auto* rooms = static_cast<BlockRoom*>(room.raw());
  std::atomic<std::size_t> taken = 0;
  const auto take = [&]() -> const Product<T, C>* {
    const std::size_t i = taken++;
    return i < blocks.size() ? &blocks[i] : nullptr;
  };
#pragma omp parallel num_threads(device.threads()) if (blocks.size() > 1)
  {
    BlockRoom& own = rooms[omp_get_thread_num()];
    Turn<T, C> turn{.block = take()};
    while (turn.block) {
      turn.next = take();
      run(turn, own);
      turn.has_panels = turn.next && turn.next->b.data == turn.block->b.data &&
                        turn.next->size.n == turn.block->size.n && turn.next->size.k == turn.block->size.k &&
                        turn.block->size.k <= depth;
      turn.block = turn.next;
    }
  }
}

}  // namespace mcpp::kernel
