#include "tensor/cuda/launch.cuh"
#include "tensor/ops/scan/gated_scan.h"

namespace mcpp {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxTaps = 8;

/// Operands of the convolution for kernels.
template <class E>
struct ConvOperands {
  i64 seq, batch, groups, channels, width, taps, first;
  const i32* starts;
  const E *p, *weight, *bias;

  __device__ i64 p_at(i64 t, i64 b, i64 channel) const {
    return ((t * batch + b) * groups + channel / channels) * width + channel % channels;
  }
  __device__ i64 x_at(i64 t, i64 b, i64 channel) const { return (t * batch + b) * groups * channels + channel; }
  /// Returns the number of positions before row t that it reads.
  __device__ i64 reach(i64 t, i64 b) const {
    const i64 before = t + first - (starts ? starts[t * batch + b] : 0);
    return before < taps - 1 ? before : taps - 1;
  }
  __device__ auto weight_at(i64 channel, i64 tap) const { return widen(weight[channel * taps + taps - 1 - tap]); }
  /// Returns the sum before the activation. `state` may be null.
  __device__ auto convolve(i64 t, i64 b, i64 channel, const E* state) const {
    using W = decltype(widen(E()));
    W sum = bias ? widen(bias[channel]) : W{0};
    for (i64 tap = 0; tap <= reach(t, b); ++tap) {
      if (t >= tap)
        sum = fma(weight_at(channel, tap), widen(p[p_at(t - tap, b, channel)]), sum);
      else if (state)
        sum = fma(weight_at(channel, tap), widen(state[x_at(taps - 1 + t - tap, b, channel)]), sum);
    }
    return sum;
  }
};

/// Calls f(t, b, channel) for all elements of x.
template <class E, class F>
__device__ void for_each_element(const ConvOperands<E>& o, const F& f) {
  const i64 count = o.groups * o.channels, total = o.seq * o.batch * count;
  for (i64 i = blockIdx.x * i64{kThreads} + threadIdx.x; i < total; i += i64{gridDim.x} * kThreads)
    f(i / count / o.batch, i / count % o.batch, i % count);
}

template <class E>
__global__ void __launch_bounds__(kThreads) conv_forward(ConvOperands<E> o, const E* state, E* x) {
  for_each_element(o, [=](i64 t, i64 b, i64 channel) {
    const auto u = o.convolve(t, b, channel, state);
    x[o.x_at(t, b, channel)] = narrow<E>(u / (1 + exp(-u)));
  });
}

/// One thread per sample and channel, which moves the kept positions from first to last.
template <class E>
__global__ void __launch_bounds__(kThreads) update_state(ConvOperands<E> o, E* state) {
  const i64 count = o.groups * o.channels, i = blockIdx.x * i64{kThreads} + threadIdx.x;
  if (i >= o.batch * count) return;
  const i64 b = i / count, channel = i % count;
  for (i64 k = 0; k < o.taps - 1; ++k) {
    const i64 t = o.seq - (o.taps - 1) + k;
    state[o.x_at(k, b, channel)] = t >= 0 ? o.p[o.p_at(t, b, channel)] : state[o.x_at(k + o.seq, b, channel)];
  }
}

template <class E>
__global__ void __launch_bounds__(kThreads) activation_gradient(ConvOperands<E> o, E* dx) {
  for_each_element(o, [=](i64 t, i64 b, i64 channel) {
    const auto u = o.convolve(t, b, channel, nullptr), s = 1 / (1 + exp(-u));
    const i64 at = o.x_at(t, b, channel);
    dx[at] = narrow<E>(widen(dx[at]) * (s + u * s * (1 - s)));
  });
}

template <class E>
__global__ void __launch_bounds__(kThreads) input_gradient(ConvOperands<E> o, const E* du, E* dp) {
  for_each_element(o, [=](i64 t, i64 b, i64 channel) {
    using W = decltype(widen(E()));
    W sum = 0;
    for (i64 tap = 0; tap < o.taps && t + tap < o.seq; ++tap)
      if (tap <= o.reach(t + tap, b)) sum = fma(o.weight_at(channel, tap), widen(du[o.x_at(t + tap, b, channel)]), sum);
    dp[o.p_at(t, b, channel)] = narrow<E>(sum);
  });
}

/// One block per channel.
template <class E, class W>
__global__ void __launch_bounds__(kThreads)
    parameter_gradients(ConvOperands<E> o, const E* du, W* d_weight, W* d_bias, float beta) {
  const i64 channel = blockIdx.x;
  W sums[kMaxTaps + 1] = {};
  for (i64 row = threadIdx.x; row < o.seq * o.batch; row += kThreads) {
    const i64 t = row / o.batch, b = row % o.batch, reach = o.reach(t, b);
    const W dy = widen(du[o.x_at(t, b, channel)]);
    sums[kMaxTaps] += dy;
    for (i64 tap = 0; tap <= reach && tap <= t; ++tap) sums[tap] += dy * widen(o.p[o.p_at(t - tap, b, channel)]);
  }
  const auto add = [=](W* to, W sum) {
    if (threadIdx.x == 0) *to = beta == 0 ? sum : *to + sum;
  };
  for (i64 tap = 0; tap < o.taps; ++tap) add(d_weight + channel * o.taps + o.taps - 1 - tap, block_sum(sums[tap]));
  const W bias = block_sum(sums[kMaxTaps]);
  if (d_bias) add(d_bias + channel, bias);
}

template <class T>
ConvOperands<Element<T>> conv_operands(const ScanShape& shape, const Tensor& p, const ConvParams& conv,
                                       const ScanPositions& positions) {
  return {.seq = p.dim(0),
          .batch = p.dim(1),
          .groups = shape.groups,
          .channels = shape.conv_width(),
          .width = shape.width(),
          .taps = conv.weight.dim(2),
          .first = positions.first,
          .starts = positions.starts.defined() ? positions.starts.data<i32>() : nullptr,
          .p = elements<T>(p),
          .weight = elements<T>(conv.weight),
          .bias = conv.bias.defined() ? elements<T>(conv.bias) : nullptr};
}

}  // namespace

template <>
void ScanKernels<DeviceType::Cuda>::short_conv(const ScanShape& shape, const Tensor& p, const ConvParams& conv,
                                               const ScanPositions& positions, Tensor* state, Tensor& x) {
  if (x.numel() == 0) return;
  on_float(p.dtype(), [&]<class T>() {
    using E = Element<T>;
    const auto o = conv_operands<T>(shape, p, conv, positions);
    launch(conv_forward<E>, grid_for(x.numel(), kThreads, cuda(p)), kThreads, 0, cuda(p).stream(), o,
           state ? elements<T>(*state) : nullptr, elements<T>(x));
    if (!state || o.taps == 1) return;
    launch(update_state<E>, static_cast<unsigned>(ceil_div(o.batch * o.groups * o.channels, kThreads)), kThreads, 0,
           cuda(p).stream(), o, elements<T>(*state));
  });
}

template <>
void ScanKernels<DeviceType::Cuda>::short_conv_backward(const ScanShape& shape, const Tensor& p, const ConvParams& conv,
                                                        const ScanPositions& positions, Tensor& dx, Tensor& dp,
                                                        Tensor& d_weight, Tensor* d_bias, float beta) {
  on_float(p.dtype(), [&]<class T>() {
    using E = Element<T>;
    using W = AccumulateType<T>;
    const auto o = conv_operands<T>(shape, p, conv, positions);
    const int blocks = grid_for(dx.numel(), kThreads, cuda(p));
    launch(activation_gradient<E>, blocks, kThreads, 0, cuda(p).stream(), o, elements<T>(dx));
    launch(parameter_gradients<E, W>, static_cast<unsigned>(o.groups * o.channels), kThreads, 0, cuda(p).stream(), o,
           elements<T>(dx), d_weight.data<W>(), d_bias ? d_bias->data<W>() : nullptr, beta);
    launch(input_gradient<E>, blocks, kThreads, 0, cuda(p).stream(), o, elements<T>(dx), elements<T>(dp));
  });
}

}  // namespace mcpp
