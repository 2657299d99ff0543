// Partition of GEMMs with ordered sums into blocks of c, each computed by one thread. The thread copies the required
// parts of a and b, b in panels and a in strips of rows, for one chunk of k at a time. A kernel defines the layout of
// the copies and multiplies them.
#pragma once
#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <span>
#include <vector>

#include "base/integer_math.h"
#include "tensor/cpu/gemm/gemm.h"
#include "tensor/tensor.h"

namespace mcpp::kernel {

/// Software prefetch of memory that a GEMM copies or writes later. Weights and gradients come from main memory; without
/// prefetching, waiting for this memory would take as long as the arithmetic.
class Prefetcher {
 public:
  /// Adds part `part` of `parts` of the stored rows of op(x) [rows, columns]. Supports at most two calls.
  template <class T>
  void add(Operand<T> x, i64 rows, i64 columns, i64 part = 0, i64 parts = 1) {
    if (x.transposed) std::swap(rows, columns);
    const i64 begin = rows * part / parts, end = rows * (part + 1) / parts, length = columns * i64{sizeof(T)};
    if (begin == end || length == 0) return;
    ranges_[count_++] = {reinterpret_cast<const char*>(x.data + begin * x.ld), length, x.ld * i64{sizeof(T)},
                         end - begin};
    lines_ += (end - begin) * ceil_div(length, kLine);
  }
  /// Distributes all prefetches over the next `steps` calls of step().
  void spread(i64 steps) {
    steps = std::max<i64>(1, steps);
    every_ = left_ = std::max<i64>(1, steps / std::max<i64>(1, lines_));
    prefetches_per_step_ = ceil_div(lines_, steps);
  }
  /// Sets the offset from the current sums to the next sums of the same rows of a.
  void set_next_sums(i64 offset) { next_sums_ = offset; }

  /// Prefetches the destination of the next sums. Called before computing `rows` x `columns` sums that are written to
  /// c.
  template <class R>
  [[gnu::always_inline]] void begin(const R* c, i64 ld, i64 rows, i64 columns) const {
    const char* row = reinterpret_cast<const char*>(c) + next_sums_;
    for (i64 i = 0; i < rows; ++i, row += ld * i64{sizeof(R)}) {
      for (i64 at = 0; at < columns * i64{sizeof(R)}; at += kLine) __builtin_prefetch(row + at, 1);
    }
  }
  /// Issues due prefetches; called regularly in the loop over k.
  [[gnu::always_inline]] void step() {
    if (--left_ > 0) return;
    left_ = every_;
    for (i64 i = 0; i < prefetches_per_step_ && at_ < count_; ++i) issue_prefetch();
  }

 private:
  static constexpr i64 kLine = 64;
  struct Range {
    const char* row;
    i64 length, step, rows;
  };

  void issue_prefetch() {
    Range& range = ranges_[at_];
    __builtin_prefetch(range.row + column_, 0, 2);
    column_ += kLine;
    if (column_ < range.length) return;
    column_ = 0;
    range.row += range.step;
    if (--range.rows == 0) ++at_;
  }

  std::array<Range, 2> ranges_{};
  std::size_t count_ = 0, at_ = 0;
  i64 lines_ = 0, column_ = 0, every_ = 1, left_ = 1, prefetches_per_step_ = 0, next_sums_ = 0;
};

/// Maximum number of rows and columns of a block of c, of 32-bit words along k copied at a time, and of rows copied at
/// a time. Measured on an EPYC with 48 KiB of L1 and 1 MiB of L2 cache per core: a panel and the rows multiplied with
/// it fit L1; the copies, their prefetched sources and the sums fit L2.
inline constexpr i64 kBlockRows = 512, kBlockColumns = 192, kWords = 192, kStripRows = 128;
/// Rows of a strip if a is transposed, as for weight gradients. k is then short, and the sums also need space in L1.
inline constexpr i64 kTransposedStripRows = 64;
/// Padding that prevents rows of a copy of a, and panels of b, from starting on the same L1 cache lines.
inline constexpr i64 kRowStep = kWords + 16, kPanelPadding = 16;
/// Maximum columns of a panel of b: two vectors.
inline constexpr i64 kMaxPanelColumns = 32;
/// Elements of k transposed at a time, and their stride.
inline constexpr i64 kTransposed = 64, kTransposedStep = kTransposed + 4;

/// Scratch memory for the copies of a block, in 32-bit words, and for its sums unless these are in c.
struct alignas(64) BlockScratch {
  float a[kStripRows * kRowStep];
  float b[kBlockColumns * (kWords + kPanelPadding)];
  float columns[kMaxPanelColumns * kTransposedStep];
  float* sums;  // kBlockRows x kBlockColumns
};

/// Current block of a thread and its next block; null at the end.
template <class T, class C>
struct BlockTask {
  const Gemm<T, C>* block;
  const Gemm<T, C>* next = nullptr;
  bool has_panels = false;  ///< the panels of b are already copied completely
};

/// GEMM of a strip of a with a panel of b, for one chunk of k.
template <class C>
struct Strip {
  bool is_a_transposed = false;
  const float* a = nullptr;
  float* b = nullptr;
  Operand<float> uncopied_b{};  ///< source that multiply() copies to b; no data if b is already copied
  float* sums = nullptr;        ///< sums over the previous chunks of k
  i64 ld = 0;
  i64 rows = 0, depth = 0;
  bool is_first = true, is_last = true;  ///< this is the first, or the last, chunk of k
  C* c = nullptr;
  i64 ldc = 0, columns = 0;  ///< columns of c up to the end of the block; may differ from a panel's width
  float beta = 0;
};

/// Returns the number of elements along k per copy: all of k, or k divided into equal parts of at most kDepth.
template <class Kernel>
i64 depth_of(i64 k) {
  constexpr i64 kStep = 32;
  const i64 parts = ceil_div(k, Kernel::kDepth);
  return parts <= 1 ? k : ceil_div(k, parts * kStep) * kStep;
}

/// Returns the number of rows of a that are copied at a time.
template <class T>
i64 strip_rows(const Operand<T>& a) {
  return a.transposed ? kTransposedStripRows : kStripRows;
}

template <class T>
Operand<T> part_of(const Operand<T>& x, i64 row, i64 column) {
  return {x.at(row, column), x.ld, x.transposed};
}

/// Prefetches the sources of the copies that follow the strip at (`row`, `at`): the next strip, and a fraction of the
/// next panels.
template <class Kernel, class T, class C>
void prefetch_next(const BlockTask<T, C>& task, i64 at, i64 row, Prefetcher& prefetcher) {
  const Gemm<T, C>& x = *task.block;
  const i64 m = x.size.m, depth = depth_of<Kernel>(x.size.k), step = strip_rows(x.a);
  const bool is_last_strip = row + step >= m, is_last_part = at + depth >= x.size.k;
  const auto add_strip = [&](const Gemm<T, C>& from, i64 from_row, i64 from_at) {
    prefetcher.add(part_of(from.a, from_row, from_at), std::min(strip_rows(from.a), from.size.m - from_row),
                   std::min(depth_of<Kernel>(from.size.k), from.size.k - from_at));
  };
  const auto add_panels = [&](const Gemm<T, C>& from, i64 from_at) {
    prefetcher.add(part_of(from.b, from_at, 0), std::min(depth_of<Kernel>(from.size.k), from.size.k - from_at),
                   from.size.n, row / step, ceil_div(m, step));
  };
  if (!is_last_strip)
    add_strip(x, row + step, at);
  else if (!is_last_part)
    add_strip(x, 0, at + depth);
  else if (task.next)
    add_strip(*task.next, 0, 0);
  if (!is_last_part)
    add_panels(x, at + depth);
  else if (task.next && (task.next->b.data != x.b.data || depth < x.size.k))
    add_panels(*task.next, 0);
}

/// Computes a block. Inlined where the kernel is compiled for its instruction set. The kernel has
///   kDepth: elements along k in kWords words;
///   kWritesTiles: true if multiply() writes complete sums to strip.c, converted and added to its contents. Otherwise
///     it leaves them in strip.sums, which may be c itself; `adds` then makes it add to the existing values;
///   width(): columns of a panel;
///   steps(rows, columns, depth): calls of prefetcher.step() in its loops over k, for a strip;
///   copy_panels(b, depth, columns, scratch, is_done): to scratch.b; returns the stride of panels in words;
///   copies_on_first_use(b, columns): true if multiply() copies a panel of b from strip.uncopied_b on first use;
///   copy_strip(a, rows, depth, to): rows kRowStep apart, or if a is transposed elements along k
///     kTransposedStripRows apart;
///   multiply(strip, adds, ahead);
///   write(x, sums, ld): x.c = sums + beta x.c; needed without kWritesTiles.
template <class Kernel, class T, class C>
[[gnu::always_inline]] inline void compute_block(const Kernel& kernel, const BlockTask<T, C>& task,
                                                 BlockScratch& scratch) {
  const Gemm<T, C>& x = *task.block;
  const auto [m, n, k] = x.size;
  const i64 width = kernel.width(), part = depth_of<Kernel>(k), step = strip_rows(x.a);
  Strip<C> strip{
      .is_a_transposed = x.a.transposed, .sums = scratch.sums, .ld = kBlockColumns, .ldc = x.ldc, .beta = x.beta};
  bool is_direct = Kernel::kWritesTiles;
  if constexpr (std::is_same_v<C, float> && !Kernel::kWritesTiles) {
    // This choice is the same for all blocks of a GEMM, independent of its partition.
    if (n % width == 0 && x.ldc % width == 0) is_direct = true, strip.sums = x.c, strip.ld = x.ldc;
  }
  float* const first_sums = strip.sums;
  for (i64 at = 0; at < k; at += part) {
    strip.depth = std::min(part, k - at);
    strip.is_first = at == 0, strip.is_last = at + part >= k;
    const bool copies_late = !task.has_panels && kernel.copies_on_first_use(x.b, n);
    const i64 panel = kernel.copy_panels(part_of(x.b, at, 0), strip.depth, n, scratch, task.has_panels || copies_late);
    for (i64 row = 0; row < m; row += step) {
      strip.rows = std::min(step, m - row);
      Prefetcher prefetcher;
      prefetch_next<Kernel>(task, at, row, prefetcher);
      prefetcher.spread(kernel.steps(strip.rows, n, strip.depth));
      kernel.copy_strip(part_of(x.a, row, at), strip.rows, strip.depth, scratch.a);
      strip.a = scratch.a, strip.b = scratch.b;
      for (i64 j = 0; j < n; j += width, strip.b += panel) {
        strip.sums = first_sums + row * strip.ld + j;
        strip.c = x.c + row * x.ldc + j, strip.columns = n - j;
        if constexpr (std::is_same_v<T, float>) {
          if (copies_late && row == 0)
            strip.uncopied_b = part_of(x.b, at, j);
          else
            strip.uncopied_b = {};
        }
        const C* next = j + width < n    ? strip.c + width
                        : row + step < m ? x.c + (row + step) * x.ldc
                        : task.next      ? task.next->c
                                         : strip.c;
        prefetcher.set_next_sums(is_direct && strip.is_last ? (next - strip.c) * i64{sizeof(C)} : 0);
        kernel.multiply(strip, is_direct && x.beta != 0, prefetcher);
      }
    }
  }
  if constexpr (!Kernel::kWritesTiles) {
    if (!is_direct) kernel.write(x, scratch.sums, kBlockColumns);
  }
}

/// Splits the GEMMs into blocks of at most kBlockRows x `max_columns`, of nearly equal width per GEMM, since a
/// strip of a is copied for each of them.
template <class T, class C>
std::vector<Gemm<T, C>> blocks_of(std::span<const Gemm<T, C>> gemms, i64 max_columns) {
  std::vector<Gemm<T, C>> blocks;
  for (const Gemm<T, C>& x : gemms) {
    const i64 across = ceil_div(x.size.n, max_columns) * kMaxPanelColumns;
    const i64 columns = ceil_div(x.size.n, across) * kMaxPanelColumns;
    for (i64 column = 0; column < x.size.n; column += columns) {
      for (i64 row = 0; row < x.size.m; row += kBlockRows) {
        Gemm<T, C> block = x;
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

/// Splits the GEMMs into enough blocks to balance the threads, if they are large enough.
template <class T, class C>
std::vector<Gemm<T, C>> blocks_for(std::span<const Gemm<T, C>> gemms, int threads) {
  constexpr i64 kMinColumns = 64;
  i64 columns = kBlockColumns;
  std::vector<Gemm<T, C>> blocks = blocks_of(gemms, columns);
  while (threads > 1 && columns > kMinColumns && static_cast<int>(blocks.size()) < 4 * threads)
    blocks = blocks_of(gemms, columns /= 2);
  if (threads == 1) return blocks;
  // The last blocks are small, so that threads that finish early wait for at most one of them.
  const auto last = blocks.end() - std::min(static_cast<std::ptrdiff_t>(threads), std::ssize(blocks));
  const std::vector<Gemm<T, C>> rest(last, blocks.end());
  blocks.erase(last, blocks.end());
  const std::vector<Gemm<T, C>> chunks = blocks_of(std::span(rest), kMinColumns);
  blocks.insert(blocks.end(), chunks.begin(), chunks.end());
  return blocks;
}

/// Returns true if kernels of any panel width may accumulate directly in c for all blocks of the GEMMs.
template <class T, class C>
bool are_direct(std::span<const Gemm<T, C>> gemms) {
  return std::is_same_v<C, float> && std::ranges::all_of(gemms, [](const Gemm<T, C>& x) {
           return x.size.n % kMaxPanelColumns == 0 && x.ldc % kMaxPanelColumns == 0;
         });
}

/// Calls run(task, scratch) for all blocks of the GEMMs, on the device's threads. `needs_sums` adds scratch memory
/// for sums.
template <class T, class C, class Run>
void run_blocks(CpuDevice& device, std::span<const Gemm<T, C>> gemms, i64 depth, bool needs_sums, Run&& run) {
  const std::vector<Gemm<T, C>> blocks = blocks_for(gemms, device.threads());
  constexpr i64 kSums = kBlockRows * kBlockColumns;
  const auto floats = [&](i64 of_each) {
    return Tensor::empty({device.threads() * of_each}, DType::F32, device, MemoryClass::Workspace);
  };
  const Tensor scratch = floats(static_cast<i64>(sizeof(BlockScratch) / sizeof(float)));
  const Tensor sums = needs_sums ? floats(kSums) : Tensor();
  auto* thread_scratch = static_cast<BlockScratch*>(scratch.raw());
  std::atomic<std::size_t> num_taken = 0;
  const auto take = [&]() -> const Gemm<T, C>* {
    const std::size_t i = num_taken++;
    return i < blocks.size() ? &blocks[i] : nullptr;
  };
#pragma omp parallel num_threads(device.threads()) if (blocks.size() > 1)
  {
    BlockScratch& current_scratch = thread_scratch[omp_get_thread_num()];
    current_scratch.sums = needs_sums ? sums.data<float>() + omp_get_thread_num() * kSums : nullptr;
    BlockTask<T, C> task{.block = take()};
    while (task.block) {
      task.next = take();
      run(task, current_scratch);
      task.has_panels = task.next && task.next->b.data == task.block->b.data &&
                        task.next->size.n == task.block->size.n && task.next->size.k == task.block->size.k &&
                        task.block->size.k <= depth;
      task.block = task.next;
    }
  }
}

}  // namespace mcpp::kernel
