// GEMMs in which each element of c is one fp32 sum over k in ascending order, so that it depends only on its row of
// a and its column of b: neither on the number of rows nor on the partition of the work. oneDNN's sgemm uses different
// kernels for few rows and for the last rows. Low-precision types are converted to fp32 as they are copied. See
// ordered_blocks.h.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/gemm/gemm_ordered.cpp"
#include "base/integer_math.h"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "tensor/cpu/gemm/ordered_blocks.h"
#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/cpu/simd/tile_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::kernel::HWY_NAMESPACE {

using F32 = hn::ScalableTag<float>;
using mcpp::HWY_NAMESPACE::widen;

/// Loads four elements of each of kCount / 4 rows, 4 ld apart.
template <std::size_t kCount>
HWY_INLINE auto load_groups(const float* x, i64 ld) {
  const hn::CappedTag<float, kCount> d;
  if constexpr (kCount == 4) {
    return hn::LoadU(d, x);
  } else {
    return hn::Combine(d, load_groups<kCount / 2>(x + static_cast<i64>(kCount / 2) * ld, ld),
                       load_groups<kCount / 2>(x, ld));
  }
}

/// Transposes the 4 x 4 matrix formed by each block of four lanes of four vectors.
template <class V>
HWY_INLINE void transpose_blocks(V (&r)[4]) {
  const hn::DFromV<V> d;
  const auto even0 = hn::InterleaveLower(d, r[0], r[2]), odd0 = hn::InterleaveLower(d, r[1], r[3]);
  const auto even1 = hn::InterleaveUpper(d, r[0], r[2]), odd1 = hn::InterleaveUpper(d, r[1], r[3]);
  r[0] = hn::InterleaveLower(d, even0, odd0), r[1] = hn::InterleaveUpper(d, even0, odd0);
  r[2] = hn::InterleaveLower(d, even1, odd1), r[3] = hn::InterleaveUpper(d, even1, odd1);
}

/// Stores the blocks of four lanes of a vector, `step` apart.
template <class V>
HWY_INLINE void store_blocks(V v, float* to, i64 step) {
  const hn::DFromV<V> d;
  constexpr auto kBlocks = static_cast<i64>(hn::MaxLanes(d)) / 4;
  if constexpr (kBlocks == 1) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<decltype(d)> half;
    store_blocks(hn::LowerHalf(half, v), to, step);
    store_blocks(hn::UpperHalf(half, v), to + kBlocks / 2 * step, step);
  }
}

/// Writes to[count, width] = the first `count` of k of columns of the transposed b.
void transpose_full_vectors(const float* b, i64 ld, i64 count, i64 width, float* to) {
  constexpr F32 d;
  constexpr std::size_t kLanes = hn::MaxLanes(d);
  constexpr auto kLong = static_cast<i64>(kLanes);
  // Reads a vector of each column at a time: columns a multiple of 2 KiB apart evict each other's lines from the L1
  // cache, so each line should be read once.
  for (; count >= kLong; count -= kLong, b += kLong, to += kLong * width) {
    for (i64 j = 0; j < width; j += 4) {
      const float* from = b + j * ld;
      hn::Vec<F32> r[4]{hn::LoadU(d, from), hn::LoadU(d, from + ld), hn::LoadU(d, from + 2 * ld),
                        hn::LoadU(d, from + 3 * ld)};
      transpose_blocks(r);
      for (i64 k = 0; k < 4; ++k) store_blocks(r[k], to + k * width + j, 4 * width);
    }
  }
  for (i64 k = 0; k < count; k += 4, to += 4 * width) {
    for (i64 j = 0; j < width; j += kLong) {
      const float* from = b + j * ld + k;
      hn::Vec<F32> r[4]{load_groups<kLanes>(from, ld), load_groups<kLanes>(from + ld, ld),
                        load_groups<kLanes>(from + 2 * ld, ld), load_groups<kLanes>(from + 3 * ld, ld)};
      transpose_blocks(r);
      for (i64 i = 0; i < 4; ++i) hn::StoreU(r[i], d, to + j + i * width);
    }
  }
}

/// Writes to[depth, width] = columns of the transposed b, padded with zeros. Handles as much of k at a time as fits
/// into the L1 cache together with its copy.
template <class T>
void transpose_panel(Operand<T> b, i64 depth, i64 columns, i64 width, float* scratch, float* to) {
  for (i64 k = 0; k < depth; k += kTransposed, to += kTransposed * width) {
    const i64 count = std::min(kTransposed, depth - k), even = (count + 3) / 4 * 4;
    if constexpr (std::is_same_v<T, float>) {
      if (columns == width && even == count) {
        transpose_full_vectors(b.data + k, b.ld, count, width, to);
        continue;
      }
    }
    for (i64 j = 0; j < width; ++j) {
      const i64 valid_columns = j < columns ? count : 0;
      if (valid_columns > 0) widen(b.data + j * b.ld + k, valid_columns, scratch + j * kTransposedStep);
      std::fill(scratch + j * kTransposedStep + valid_columns, scratch + j * kTransposedStep + even, 0.0f);
    }
    transpose(scratch, kTransposedStep, width, even, to, width);
  }
}

/// Kernel for fp32 panels. Panels are [depth, width], strips [rows, depth], or [depth, rows] if a is transposed.
struct Fp32Kernel {
  static constexpr i64 kDepth = kWords;
  static constexpr bool kWritesTiles = false;

#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
  static constexpr int kRows = 12;
#else
  static constexpr int kRows = 6;
#endif

  static i64 width() {
    return 2 * static_cast<i64>(hn::Lanes(F32()));
  }
  static i64 steps(i64 rows, i64 columns, i64 depth) {
    return ceil_div(rows, kRows) * ceil_div(columns, width()) * ceil_div(depth, kHookInterval);
  }

  template <class T>
  static i64 copy_panels(Operand<T> b, i64 depth, i64 columns, BlockScratch& scratch, bool is_done) {
    const i64 size = (depth + 3) / 4 * 4 * width() + kPanelPadding;
    if (is_done) return size;
    float* to = scratch.b;
    if (b.transposed) {
      for (i64 j = 0; j < columns; j += width(), to += size)
        transpose_panel<T>({b.data + j * b.ld, b.ld, true}, depth, std::min(width(), columns - j), width(),
                           scratch.columns, to);
      return size;
    }
    for (i64 k = 0; k < depth; ++k) {
      const T* from = b.data + k * b.ld;
      to = scratch.b + k * width();
      for (i64 j = 0; j < columns; j += width(), to += size) {
        const i64 valid_columns = std::min(width(), columns - j);
        widen(from + j, valid_columns, to);
        if (valid_columns < width()) std::fill(to + valid_columns, to + width(), 0.0f);
      }
    }
    return size;
  }

  template <class T>
  static void copy_strip(Operand<T> a, i64 rows, i64 depth, float* to) {
    const i64 step = a.transposed ? kTransposedStripRows : kRowStep;
    const i64 count = a.transposed ? depth : rows, length = a.transposed ? rows : depth;
    for (i64 i = 0; i < count; ++i) widen(a.data + i * a.ld, length, to + i * step);
  }

  /// Returns true if all panels are full and their rows of b are stored as in a copy, so that they can be read in
  /// place.
  template <class T>
  static bool copies_on_first_use(Operand<T> b, i64 columns) {
    return std::is_same_v<T, float> && !b.transposed && columns % width() == 0;
  }

  template <class C>
  static void multiply(const Strip<C>& strip, bool adds, Prefetcher& prefetcher) {
    Operands<float> x{strip.a, strip.is_a_transposed ? kTransposedStripRows : kRowStep, strip.b, width(), strip.sums,
                      strip.ld};
    if (strip.uncopied_b.data) x.b = strip.uncopied_b.data, x.ldb = strip.uncopied_b.ld;
    float* copy = strip.uncopied_b.data ? strip.b : nullptr;
    const Sums sums = adds ? Sums::Add : strip.is_first ? Sums::Begin : Sums::Continue;
    if (strip.is_a_transposed)
      multiply_panel<kRows, 2, true>(F32(), x, strip.rows, strip.depth, sums, prefetcher, copy);
    else
      multiply_panel<kRows, 2, false>(F32(), x, strip.rows, strip.depth, sums, prefetcher, copy);
  }

  template <class T, class C>
  static void write(const Gemm<T, C>& x, const float* sums, i64 ld) {
    using namespace mcpp::HWY_NAMESPACE;
    const F32 d;
    for (i64 r = 0; r < x.size.m; ++r) {
      const float* from = sums + r * ld;
      C* to = x.c + r * x.ldc;
      sweep(d, 0, x.size.n, [=, &x](i64 i, auto lanes) HWY_ATTR {
        store(hn::Add(previous(d, to + i, x.beta, lanes), load(d, from + i, lanes)), d, to + i, lanes);
      });
    }
  }
};

void ordered_f32(const BlockTask<float, float>& task, BlockScratch& scratch) {
  compute_block(Fp32Kernel(), task, scratch);
}
void ordered_bf16(const BlockTask<BFloat16, BFloat16>& task, BlockScratch& scratch) {
  compute_block(Fp32Kernel(), task, scratch);
}
void ordered_bf16_to_f32(const BlockTask<BFloat16, float>& task, BlockScratch& scratch) {
  compute_block(Fp32Kernel(), task, scratch);
}
void ordered_f16(const BlockTask<Float16, Float16>& task, BlockScratch& scratch) {
  compute_block(Fp32Kernel(), task, scratch);
}
void ordered_f16_to_f32(const BlockTask<Float16, float>& task, BlockScratch& scratch) {
  compute_block(Fp32Kernel(), task, scratch);
}

}  // namespace mcpp::kernel::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp::kernel {

HWY_EXPORT(ordered_f32);
HWY_EXPORT(ordered_bf16);
HWY_EXPORT(ordered_bf16_to_f32);
HWY_EXPORT(ordered_f16);
HWY_EXPORT(ordered_f16_to_f32);

namespace {

template <class T, class C>
void run_block(const BlockTask<T, C>& x, BlockScratch& scratch) {
  if constexpr (std::is_same_v<T, float>) {
    HWY_DYNAMIC_DISPATCH(ordered_f32)(x, scratch);
  } else if constexpr (std::is_same_v<C, BFloat16>) {
    HWY_DYNAMIC_DISPATCH(ordered_bf16)(x, scratch);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    HWY_DYNAMIC_DISPATCH(ordered_bf16_to_f32)(x, scratch);
  } else if constexpr (std::is_same_v<C, Float16>) {
    HWY_DYNAMIC_DISPATCH(ordered_f16)(x, scratch);
  } else {
    HWY_DYNAMIC_DISPATCH(ordered_f16_to_f32)(x, scratch);
  }
}

}  // namespace

template <class T, class C>
void gemm_ordered(CpuDevice& device, std::span<const Gemm<T, C>> gemms) {
  run_blocks(device, gemms, kWords, !are_direct(gemms), run_block<T, C>);
}

template void gemm_ordered(CpuDevice&, std::span<const Gemm<float, float>>);
template void gemm_ordered(CpuDevice&, std::span<const Gemm<BFloat16, BFloat16>>);
template void gemm_ordered(CpuDevice&, std::span<const Gemm<BFloat16, float>>);
template void gemm_ordered(CpuDevice&, std::span<const Gemm<Float16, Float16>>);
template void gemm_ordered(CpuDevice&, std::span<const Gemm<Float16, float>>);

}  // namespace mcpp::kernel
#endif  // HWY_ONCE
