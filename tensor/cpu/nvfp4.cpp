// Emulation of NVFP4 on the CPU: elements times the scales of their blocks are stored in bf16, which represents them
// exactly.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/nvfp4.cpp"
#include "tensor/ops/low_precision/nvfp4.h"

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/philox-inl.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Columns that are rounded together; a multiple of a block, and a window of RandomRow.
constexpr i64 kWindow = 256;

/// Rounding of one bf16 matrix into another.
struct Nvfp4Task {
  const BFloat16* from;
  BFloat16* to;
  i64 rows, columns;
  BlockShape block;
  float matrix_scale;
  const StochasticRounding* stochastic;  // null: to nearest

  i64 at(i64 row, i64 column) const { return row * columns + column; }
};

/// Random words of the rows of a band in a window of columns.
class RandomWords {
 public:
  /// Draws words for the rows [first, end) and the columns [column, column + count) of the shard.
  void draw(const StochasticRounding& random, i64 first, i64 end, i64 column, i64 count) {
    const i64 b = std::ssize(random.samples);
    for (i64 row = first; row < end; ++row) {
      const i64 sample = random.samples[static_cast<std::size_t>(row % b)], position = random.positions.at(row / b);
      RandomRow words(random.key, dropout_counter(sample, position, 0));
      for (const ColumnRun& run : random.columns) {
        const i64 begin = std::max(run.first, column), stop = std::min(run.first + run.count, column + count);
        if (begin >= stop) continue;
        const u32* drawn = words.window(run.global + begin - run.first, stop - begin);
        std::copy(drawn, drawn + (stop - begin), words_ + (row - first) * kWindow + begin - column);
      }
    }
  }
  const u32* at(i64 row, i64 column) const { return words_ + row * kWindow + column; }

 private:
  u32 words_[kNvfp4Block * kWindow + hn::MaxLanes(hn::ScalableTag<u32>())] = {};  // one vector is read past the end
};

/// Scale of the block of each lane, and the factor of elements before rounding.
template <class D>
struct Nvfp4Factors {
  hn::Vec<D> block_scale, factor;
};

/// `largest`: magnitudes. Follows torchao's order of operations.
template <class D>
HWY_INLINE Nvfp4Factors<D> nvfp4_factors(D d, hn::Vec<D> largest, float matrix_scale) {
  const hn::RebindToUnsigned<D> bits;
  const auto exact = hn::Div(hn::Div(largest, hn::Set(d, kE2m1Max)), hn::Set(d, matrix_scale));
  const auto clamped = hn::Min(hn::Max(exact, hn::Set(d, kNvfp4MinScale)), hn::Set(d, kNvfp4MaxScale));
  // Normal values of E4M3: rounds to 3 fraction bits, ties to even.
  const auto all = hn::BitCast(bits, clamped);
  const auto odd = hn::And(hn::ShiftRight<20>(all), hn::Set(bits, 1));
  const auto sum = hn::Add(all, hn::Add(odd, hn::Set(bits, (u32{1} << 19) - 1)));
  const auto scale = hn::BitCast(d, hn::And(sum, hn::Set(bits, ~((u32{1} << 20) - 1))));
  return {scale, hn::Div(hn::Set(d, 1 / matrix_scale), scale)};
}

/// Distance between the E2M1 values around magnitudes up to 6.
template <class D>
HWY_INLINE hn::Vec<D> e2m1_step(D d, hn::Vec<D> magnitude) {
  const auto large = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 4.0F)), hn::Set(d, 1.0F), hn::Set(d, 2.0F));
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 2.0F)), hn::Set(d, 0.5F), large);
}

/// Rounds magnitudes up to 6 to E2M1: to nearest, ties to even, or with `words` up with a probability proportional to
/// the distance from the lower value.
template <class D>
HWY_INLINE hn::Vec<D> nearest_e2m1(D d, hn::Vec<D> magnitude, const u32* words) {
  const auto step = e2m1_step(d, magnitude);
  if (!words) {
    const auto shift = hn::Mul(step, hn::Set(d, 0x1p23F));
    return hn::Sub(hn::Add(magnitude, shift), shift);
  }
  const hn::RebindToSigned<D> integers;
  const hn::RebindToUnsigned<D> bits;
  const auto steps = hn::Div(magnitude, step), below = hn::Floor(steps);
  const auto word = hn::BitCast(integers, hn::ShiftRight<8>(words_in_lanes(bits, words)));
  const auto draw = hn::Mul(hn::ConvertTo(d, word), hn::Set(d, 0x1p-24F));
  const auto goes_up = hn::Lt(draw, hn::Sub(steps, below));
  return hn::Mul(hn::Add(below, hn::IfThenElseZero(goes_up, hn::Set(d, 1.0F))), step);
}

template <class D>
HWY_INLINE void round_nvfp4_vector(D d, const Nvfp4Task& task, i64 i, const Nvfp4Factors<D>& factors, const u32* words,
                                   auto lanes) {
  const auto x = load(d, task.from + i, lanes);
  const auto magnitude = hn::Min(hn::Mul(hn::Abs(x), factors.factor), hn::Set(d, kE2m1Max));
  const auto rounded = hn::Mul(nearest_e2m1(d, magnitude, words), factors.block_scale);
  store(hn::CopySign(rounded, x), d, task.to + i, lanes);
}

/// Rounds the rows [first, end) of the columns [column, column + count), which are complete blocks.
void round_nvfp4_window(const Nvfp4Task& task, const RandomWords& random, i64 first, i64 end, i64 column, i64 count) {
  const LaneTag<BFloat16> d;
  const auto round = [&](i64 begin, i64 i, const auto& factors, auto lanes) {
    for (i64 row = first; row < end; ++row) {
      const u32* words = task.stochastic ? random.at(row - first, begin + i - column) : nullptr;
      round_nvfp4_vector(d, task, task.at(row, begin + i), factors, words, lanes);
    }
  };
  const auto largest = [&](i64 begin, i64 i, auto lanes) {
    auto amax = hn::Zero(d);
    for (i64 row = first; row < end; ++row)
      amax = hn::Max(amax, hn::Abs(load(d, task.from + task.at(row, begin + i), lanes)));
    return amax;
  };
  if (task.block.columns == 1) {  // each lane holds a block
    sweep(d, 0, count, [&](i64 i, auto lanes) {
      round(column, i, nvfp4_factors(d, largest(column, i, lanes), task.matrix_scale), lanes);
    });
    return;
  }
  for (i64 begin = column; begin < column + count; begin += task.block.columns) {
    const i64 width = std::min(task.block.columns, column + count - begin);
    float amax = 0;
    sweep(d, 0, width,
          [&](i64 i, auto lanes) { amax = std::max(amax, hn::GetLane(hn::MaxOfLanes(d, largest(begin, i, lanes)))); });
    const auto factors = nvfp4_factors(d, hn::Set(d, amax), task.matrix_scale);
    sweep(d, 0, width, [&](i64 i, auto lanes) { round(begin, i, factors, lanes); });
  }
}

void round_to_nvfp4(const Tensor& x, const Nvfp4Scale& scale, Tensor& y) {
  const Nvfp4Task task{.from = x.data<BFloat16>(),
                       .to = y.data<BFloat16>(),
                       .rows = x.dim(0),
                       .columns = x.dim(1),
                       .block = scale.block,
                       .matrix_scale = nvfp4_matrix_scale(*scale.amax.data<float>(), scale.headroom),
                       .stochastic = scale.stochastic ? &*scale.stochastic : nullptr};
  if (std::isnan(task.matrix_scale))
    return std::fill(task.to, task.to + y.numel(), BFloat16(std::numeric_limits<float>::quiet_NaN()));
  const i64 height = task.block.rows, bands = ceil_div(task.rows, height);
  parallel_for(cpu(x), bands, rows_per_chunk(height * task.columns), [&](i64 begin, i64 end) {
    RandomWords random;
    for (i64 band = begin; band < end; ++band) {
      const i64 first = band * height, last = std::min(first + height, task.rows);
      for (i64 column = 0; column < task.columns; column += kWindow) {
        const i64 count = std::min(kWindow, task.columns - column);
        if (task.stochastic) random.draw(*task.stochastic, first, last, column, count);
        round_nvfp4_window(task, random, first, last, column, count);
      }
    }
  });
}

/// Computes c = factor * product + beta * c.
void scale_product(const Tensor& product, float factor, float beta, Tensor& c) {
  on_float(c.dtype(), [&]<class T>() {
    if constexpr (sizeof(Lane<T>) == sizeof(float)) {
      const LaneTag<T> d;
      const float* from = product.data<float>();
      T* to = c.data<T>();
      parallel_for(cpu(c), c.numel(), kElementsPerChunk, [=](i64 begin, i64 end) {
        sweep(d, begin, end, [=](i64 i, auto lanes) {
          const auto scaled =
              hn::MulAdd(load(d, from + i, lanes), hn::Set(d, factor), previous(d, to + i, beta, lanes));
          store(scaled, d, to + i, lanes);
        });
      });
    }
  });
}

/// Multiplies 16 rows of a column vector by the Hadamard matrix of order 16, in place.
template <class D>
HWY_INLINE void hadamard16(D, hn::Vec<D> (&x)[kNvfp4Block]) {
  for (int half = 1; half < kNvfp4Block; half *= 2) {
    for (int i = 0; i < kNvfp4Block; ++i) {
      if (i & half) continue;
      const auto a = x[i], b = x[i + half];
      x[i] = hn::Add(a, b), x[i + half] = hn::Sub(a, b);
    }
  }
}

void random_hadamard(const Tensor& x, u32 signs, Tensor& y) {
  const LaneTag<BFloat16> d;
  const i64 rows = x.dim(0), n = x.dim(1), bands = rows / kNvfp4Block;
  const BFloat16* from = x.data<BFloat16>();
  BFloat16* to = y.data<BFloat16>();
  parallel_for(cpu(x), bands, rows_per_chunk(kNvfp4Block * n), [&](i64 begin, i64 end) {
    for (i64 band = begin; band < end; ++band) {
      const i64 first = band * kNvfp4Block * n;
      sweep(d, first, first + n, [&](i64 at, auto lanes) {
        hn::Vec<LaneTag<BFloat16>> v[kNvfp4Block];
        for (int i = 0; i < kNvfp4Block; ++i)
          v[i] = hn::Mul(load(d, from + at + i * n, lanes), hn::Set(d, signs >> i & 1 ? -0.25F : 0.25F));
        hadamard16(d, v);
        for (int i = 0; i < kNvfp4Block; ++i) store(v[i], d, to + at + i * n, lanes);
      });
    }
  });
  std::copy(from + bands * kNvfp4Block * n, from + rows * n, to + bands * kNvfp4Block * n);
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(round_to_nvfp4);
HWY_EXPORT(scale_product);
HWY_EXPORT(random_hadamard);

template <>
void Nvfp4Kernels<DeviceType::Cpu>::round_to_nvfp4(const Tensor& x, const Nvfp4Scale& scale, Tensor& y) {
  HWY_DYNAMIC_DISPATCH(round_to_nvfp4)(x, scale, y);
}

template <>
void Nvfp4Kernels<DeviceType::Cpu>::random_hadamard(const Tensor& x, u32 signs, Tensor& y) {
  HWY_DYNAMIC_DISPATCH(random_hadamard)(x, signs, y);
}

template <>
void Nvfp4Kernels<DeviceType::Cpu>::matmul(const Tensor& a, const Nvfp4Scale& a_scale, const Tensor& b,
                                           const Nvfp4Scale& b_scale, Tensor& c, const ops::MatmulOptions& options) {
  const auto rounded = [](const Tensor& x, const Nvfp4Scale& scale) {
    Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device(), MemoryClass::Workspace);
    round_to_nvfp4(x, scale, y);
    return y;
  };
  const auto matrix_scale = [](const Nvfp4Scale& scale) {
    return nvfp4_matrix_scale(*scale.amax.data<float>(), scale.headroom);
  };
  Tensor product = Tensor::empty(c.shape(), DType::F32, c.device(), MemoryClass::Workspace);
  Kernels<DeviceType::Cpu>::matmul(rounded(a, a_scale), rounded(b, b_scale), product,
                                   {.transpose_a = options.transpose_a, .transpose_b = options.transpose_b, .beta = 0});
  HWY_DYNAMIC_DISPATCH(scale_product)(product, matrix_scale(a_scale) * matrix_scale(b_scale), options.beta, c);
}

}  // namespace mcpp
#endif  // HWY_ONCE
