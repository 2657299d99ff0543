#include "tensor/cuda/launch.cuh"
#include "tensor/ops/scan/gated_scan.h"

namespace mcpp {
namespace {

constexpr int kThreads = 128;

/// Operands for kernels. Segments of a row are normalized separately: heads, or groups of heads.
template <class E>
struct NormOperands {
  bool gate_first;  ///< the gate multiplies the input of the norm
  bool is_sigmoid;  ///< the gate is sigmoid(z), otherwise silu(z)
  i64 rows, size, per_group, groups, width, gate_offset;
  double eps;
  const E *y, *p, *w;

  __device__ i64 count() const { return groups * per_group; }
  __device__ i64 y_at(i64 row, i64 segment) const { return (row * count() + segment) * size; }
  __device__ i64 gate_at(i64 row, i64 segment) const {
    return (row * groups + segment / per_group) * width + gate_offset + segment % per_group * size;
  }
  __device__ i64 weight_at(i64 segment) const { return gate_first ? segment * size : 0; }
  template <class W>
  __device__ W gate_of(W z) const {
    return (is_sigmoid ? W{1} : z) / (1 + exp(-z));
  }
  template <class W>
  __device__ W slope_of_gate(W z) const {
    const W s = 1 / (1 + exp(-z));
    return s * (is_sigmoid ? 1 - s : 1 + z * (1 - s));
  }
  /// Returns the input of the norm at element i of a segment.
  __device__ auto input(i64 row, i64 segment, i64 i) const {
    const auto value = widen(y[y_at(row, segment) + i]);
    if (!gate_first) return value;
    return value * gate_of(widen(p[gate_at(row, segment) + i]));
  }
  /// Returns 1 / sqrt(mean of squares + eps) on every thread of the block.
  __device__ auto inverse_length(i64 row, i64 segment) const {
    using W = decltype(widen(E()));
    W squares = 0;
    for (i64 i = threadIdx.x; i < size; i += kThreads) {
      const W value = input(row, segment, i);
      squares += value * value;
    }
    return static_cast<W>(1 / sqrt(static_cast<double>(block_sum(squares)) / static_cast<double>(size) + eps));
  }
};

/// One block per segment.
template <class E>
__global__ void __launch_bounds__(kThreads) norm_forward(NormOperands<E> o, E* out) {
  const i64 row = blockIdx.x / o.count(), segment = blockIdx.x % o.count();
  const auto scale = o.inverse_length(row, segment);
  for (i64 i = threadIdx.x; i < o.size; i += kThreads) {
    auto value = o.input(row, segment, i) * scale * widen(o.w[o.weight_at(segment) + i]);
    if (!o.gate_first) value *= o.gate_of(widen(o.p[o.gate_at(row, segment) + i]));
    out[o.y_at(row, segment) + i] = narrow<E>(value);
  }
}

/// Computes the gradients of one segment as on the CPU; each thread adds to the elements of dw that it owns.
template <class E, class W>
__device__ void segment_backward(const NormOperands<E>& o, i64 row, i64 segment, const E* d_out, E* dy, E* dp, W* dw) {
  const W scale = o.inverse_length(row, segment);
  const i64 at = o.y_at(row, segment), gate_at = o.gate_at(row, segment), weight_at = o.weight_at(segment);
  W products = 0;
  for (i64 i = threadIdx.x; i < o.size; i += kThreads) {
    const W gate = o.gate_of(widen(o.p[gate_at + i])), value = widen(o.y[at + i]) * gate * scale;
    const W gradient = widen(d_out[at + i]);
    products += gradient * widen(o.w[weight_at + i]) * value;
    dw[weight_at + i] += gradient * value;
  }
  const W mean = block_sum(products) / static_cast<W>(o.size);
  for (i64 i = threadIdx.x; i < o.size; i += kThreads) {
    const W z = widen(o.p[gate_at + i]), gate = o.gate_of(z), slope = o.slope_of_gate(z);
    const W value = widen(o.y[at + i]), e = widen(d_out[at + i]) * widen(o.w[weight_at + i]);
    if (o.gate_first) {
      const W d_input = scale * (e - value * gate * scale * mean);
      dy[at + i] = narrow<E>(d_input * gate);
      dp[gate_at + i] = narrow<E>(d_input * value * slope);
    } else {
      const W normalized = value * scale;
      dy[at + i] = narrow<E>(scale * (e * gate - normalized * mean));
      dp[gate_at + i] = narrow<E>(e * normalized * slope);
    }
  }
}

/// One block per kGatedNormRows rows.
template <class E, class W>
__global__ void __launch_bounds__(kThreads)
    norm_backward(NormOperands<E> o, i64 weights, const E* d_out, E* dy, E* dp, W* dw) {
  W* sums = dw + blockIdx.x * weights;
  for (i64 segment = 0; segment < (o.gate_first ? o.count() : 1); ++segment)
    for (i64 i = threadIdx.x; i < o.size; i += kThreads) sums[o.weight_at(segment) + i] = 0;
  const i64 begin = blockIdx.x * ops::kGatedNormRows;
  for (i64 row = begin; row < begin + ops::kGatedNormRows && row < o.rows; ++row)
    for (i64 segment = 0; segment < o.count(); ++segment) segment_backward(o, row, segment, d_out, dy, dp, sums);
}

template <class T>
NormOperands<Element<T>> norm_operands(const ScanShape& shape, const Tensor& y, const Tensor& p, const Tensor& w,
                                       double eps) {
  const bool gate_first = !shape.is_delta();
  return {.gate_first = gate_first,
          .is_sigmoid = shape.decays_channels(),
          .rows = p.dim(0) * p.dim(1),
          .size = gate_first ? shape.gate_width() : shape.value_dim,
          .per_group = gate_first ? 1 : shape.heads_per_group,
          .groups = shape.groups,
          .width = shape.width(),
          .gate_offset = shape.conv_width(),
          .eps = eps,
          .y = elements<T>(y),
          .p = elements<T>(p),
          .w = elements<T>(w)};
}

}  // namespace

template <>
void ScanKernels<DeviceType::Cuda>::gated_norm(const ScanShape& shape, const Tensor& y, const Tensor& p,
                                               const Tensor& w, double eps, Tensor& out) {
  if (y.numel() == 0) return;
  on_float(p.dtype(), [&]<class T>() {
    const auto o = norm_operands<T>(shape, y, p, w, eps);
    launch(norm_forward<Element<T>>, static_cast<unsigned>(o.rows * o.groups * o.per_group), kThreads, 0,
           cuda(p).stream(), o, elements<T>(out));
  });
}

template <>
void ScanKernels<DeviceType::Cuda>::gated_norm_backward(const ScanShape& shape, const Tensor& d_out, const Tensor& y,
                                                        const Tensor& p, const Tensor& w, double eps, Tensor& dy,
                                                        Tensor& dp, Tensor& dw) {
  if (y.numel() == 0) return;
  on_float(p.dtype(), [&]<class T>() {
    using W = AccumulateType<T>;
    const auto o = norm_operands<T>(shape, y, p, w, eps);
    launch(norm_backward<Element<T>, W>, static_cast<unsigned>(ceil_div(o.rows, ops::kGatedNormRows)), kThreads, 0,
           cuda(p).stream(), o, w.numel(), elements<T>(d_out), elements<T>(dy), elements<T>(dp), dw.data<W>());
  });
}

}  // namespace mcpp
