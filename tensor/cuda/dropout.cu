#include "tensor/cuda/philox.cuh"
#include "tensor/cuda/rows.cuh"
#include "tensor/ops/dropout.h"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

/// Maximum number of samples per launch, passed as kernel arguments; larger batches take several launches.
constexpr i64 kMaxSamples = 128;

/// Factor of elements: 1, or the factor of dropout or jitter for their random words.
enum class Factors { Ones, Dropout, Jitter };

/// Random draws of a launch: struct Dropout for columns first_sample .. of the batch.
template <class W>
struct Draw {
  u64 key = 0;
  u32 threshold = 0;
  W scale = 1;
  W lowest = 0, step = 0;  ///< lowest factor and step of jitter
  PositionRanges positions;
  i64 first_column = 0;
  i64 first_sample = 0;
  const i64* sample_indices = nullptr;  ///< samples of the full batch in device memory; null: use `samples`
  i64 samples[kMaxSamples] = {};

  __device__ __forceinline__ i64 sample(unsigned column) const {
    return sample_indices ? sample_indices[first_sample + column] : samples[column];
  }
};

/// Computes y [positions, batch, n] = residual + dropout(x + bias); bias and residual may be null.
template <class E>
struct Operands {
  const E *x, *bias, *residual;
  E* y;
  i64 positions, batch, n;
};

/// Draws the words of elements first .. first + kUnit - 1, which are full blocks of four or lie within one.
template <int kUnit, class W>
__device__ __forceinline__ void draw_words(const Draw<W>& draw, i64 sample, i64 position, i64 first,
                                           u32 (&words)[kUnit]) {
  constexpr int kBlocks = (kUnit + 3) / 4;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const Philox4 drawn = philox4x32(draw.key, dropout_counter(sample, position, first / 4 + block));
#pragma unroll
    for (int j = 0; j < std::min(kUnit, 4); ++j)
      words[4 * block + j] = kUnit < 4 ? word_of(drawn, first % 4 + j) : drawn[static_cast<std::size_t>(j)];
  }
}

template <Factors kFactors, class W>
__device__ __forceinline__ W factor_of(const Draw<W>& draw, u32 word) {
  if constexpr (kFactors == Factors::Jitter) return fma(static_cast<W>(word >> 8), draw.step, draw.lowest);
  return word < draw.threshold ? W{0} : draw.scale;
}

/// A block processes one column of the batch: column blockIdx.z of `draw`.
template <class E, int kUnit, Factors kFactors>
__global__ void drop_and_add(const Operands<E> t, const __grid_constant__ Draw<AccumulateType<E>> draw) {
  using W = AccumulateType<E>;
  constexpr int kUnroll = 2;
  const i64 i = first_column<kUnit>();
  if (i >= t.n) return;
  const auto bias = load_bias<E, kUnit>(t.bias, i);
  const i64 sample = draw.sample(blockIdx.z), first = (draw.first_sample + blockIdx.z) * t.n + i;
  const i64 stride = t.batch * t.n;
  Pack<E, kUnit> x[kUnroll], residual[kUnroll];
  const auto load = [&](int k, i64 position) {
    x[k] = load_pack<E, kUnit>(t.x + position * stride + first);
    if (t.residual) residual[k] = load_pack<E, kUnit>(t.residual + position * stride + first);
  };
  const auto use = [&](int k, i64 position) {
    u32 words[kUnit] = {};
    if constexpr (kFactors != Factors::Ones)
      draw_words<kUnit>(draw, sample, draw.positions.at(position), draw.first_column + i, words);
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      const W v = widen(x[k].values[j]) + widen(bias.values[j]);
      const W factor = factor_of<kFactors>(draw, words[j]);
      x[k].values[j] = narrow<E>(t.residual ? fma(v, factor, W{widen(residual[k].values[j])}) : v * factor);
    }
    store_pack(t.y + position * stride + first, x[k]);
  };
  sweep_rows<kUnroll>(t.positions, load, use);
}

template <class E, Factors kFactors>
void launch_drop_and_add(const Operands<E>& t, const Draw<AccumulateType<E>>& draw, i64 samples,
                         const CudaDevice& device) {
  const bool in_blocks = draw.first_column % std::min(Pack<E>::kCount, 4) == 0;
  on_unit<E>(in_blocks && is_packable(t.n, t.x, t.bias, t.residual, t.y), [&]<int kUnit>() {
    const auto [grid, block] = columns_launch(t.n / kUnit, t.positions, device, samples);
    launch(drop_and_add<E, kUnit, kFactors>, grid, block, 0, device.stream(), t, draw);
  });
}

/// Computes y = residual + (x + bias) times factors; bias and residual may be null.
template <Factors kFactors>
void apply_factors(const Tensor& x, const Tensor* bias, const Tensor* residual, const Dropout& dropout, Tensor& y) {
  if (x.numel() == 0) return;
  const CudaDevice& device = cuda(x);
  on_float(x.dtype(), [&]<class T>() {
    using E = Element<T>;
    Operands<E> t{elements<T>(x),
                  bias ? elements<T>(*bias) : nullptr,
                  residual ? elements<T>(*residual) : nullptr,
                  elements<T>(y),
                  row_count(x),
                  1,
                  x.dim(-1)};
    Draw<AccumulateType<E>> draw;
    if (dropout.p == 0) return launch_drop_and_add<E, Factors::Ones>(t, draw, 1, device);
    t.batch = static_cast<i64>(dropout.samples.size());
    t.positions /= t.batch;
    draw.key = dropout.key;
    draw.threshold = dropout_threshold(dropout.p);
    draw.scale = static_cast<AccumulateType<E>>(dropout_scale(dropout.p));
    draw.lowest = static_cast<AccumulateType<E>>(jitter_lowest(dropout.p));
    draw.step = static_cast<AccumulateType<E>>(jitter_step(dropout.p));
    draw.positions = dropout.positions;
    draw.first_column = dropout.first_column;
    if (dropout.sample_indices.defined()) draw.sample_indices = dropout.sample_indices.data<i64>();
    for (; draw.first_sample < t.batch; draw.first_sample += kMaxSamples) {
      const i64 count = std::min(kMaxSamples, t.batch - draw.first_sample);
      std::copy_n(dropout.samples.begin() + draw.first_sample, count, draw.samples);
      launch_drop_and_add<E, kFactors>(t, draw, count, device);
    }
  });
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::bias_dropout_add(const Tensor& x, const Tensor* bias, const Tensor& residual,
                                                 const Dropout& dropout, Tensor& y) {
  apply_factors<Factors::Dropout>(x, bias, &residual, dropout, y);
}

template <>
void Kernels<DeviceType::Cuda>::dropout(const Tensor& x, const Dropout& dropout, Tensor& y) {
  apply_factors<Factors::Dropout>(x, nullptr, nullptr, dropout, y);
}

template <>
void Kernels<DeviceType::Cuda>::jitter(const Tensor& x, const Dropout& draws, Tensor& y) {
  apply_factors<Factors::Jitter>(x, nullptr, nullptr, draws, y);
}

}  // namespace mcpp
