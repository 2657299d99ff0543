#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/scan/short_conv.cpp"
#include <algorithm>
#include <vector>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/math-inl.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/ops/scan/gated_scan.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Sizes and positions of a convolution. The channels of p of one row and group are consecutive, and so are the
/// channels of x.
struct ConvRows {
  i64 seq, batch, groups, channels, width, taps, first;
  const i32* starts;

  ConvRows(const ScanShape& shape, const Tensor& p, const ConvParams& conv, const ScanPositions& positions)
      : seq(p.dim(0)),
        batch(p.dim(1)),
        groups(shape.groups),
        channels(shape.conv_width()),
        width(shape.width()),
        taps(conv.weight.dim(2)),
        first(positions.first),
        starts(positions.starts.defined() ? positions.starts.data<i32>() : nullptr) {}

  i64 p_at(i64 t, i64 b, i64 g) const { return ((t * batch + b) * groups + g) * width; }
  i64 x_at(i64 t, i64 b, i64 g) const { return ((t * batch + b) * groups + g) * channels; }
  /// Returns the number of positions before row t that it reads.
  i64 reach(i64 t, i64 b) const { return std::min(taps - 1, t + first - (starts ? starts[t * batch + b] : 0)); }
};

/// Returns the weights by tap: [taps, groups * channels], the tap of the current position first.
template <class T>
std::vector<Lane<T>> weights_by_tap(const Tensor& weight) {
  const i64 taps = weight.dim(2), channels = weight.numel() / taps;
  std::vector<Lane<T>> result(static_cast<std::size_t>(weight.numel()));
  const T* w = weight.data<T>();
  for (i64 c = 0; c < channels; ++c) {
    for (i64 tap = 0; tap < taps; ++tap)
      result[static_cast<std::size_t>(tap * channels + c)] = static_cast<Lane<T>>(w[c * taps + taps - 1 - tap]);
  }
  return result;
}

/// Returns the input of the convolution `tap` positions before row t: in p, or in the state.
template <class T>
const T* input_at(const ConvRows& r, const T* p, const T* state, i64 t, i64 b, i64 g, i64 tap) {
  if (t >= tap) return p + r.p_at(t - tap, b, g);
  return state ? state + r.x_at(r.taps - 1 + t - tap, b, g) : nullptr;
}

/// Number of taps: a constant for the usual 4, so that compilers unroll loops over them.
template <int kTaps>
struct Taps {
  i64 count;
  constexpr operator i64() const { return kTaps > 0 ? kTaps : count; }
};

template <class F>
void on_taps(i64 taps, F&& f) {
  taps == 4 ? f(Taps<4>{taps}) : f(Taps<0>{taps});
}

/// Computes the sum before the activation of channels [i, i + lanes).
template <class T, class D>
HWY_INLINE hn::Vec<D> convolve(D d, const T* const* inputs, auto taps, const Lane<T>* w, i64 stride, const T* bias,
                               i64 i, auto lanes) {
  auto sum = bias ? load(d, bias + i, lanes) : hn::Zero(d);
  for (i64 tap = 0; tap < taps; ++tap)
    sum = hn::MulAdd(load(d, w + tap * stride + i, lanes), load(d, inputs[tap] + i, lanes), sum);
  return sum;
}

/// Sets the inputs of each tap to rows, or to `zeros` outside of the document.
template <class T>
void gather_inputs(const ConvRows& r, const T* p, const T* state, i64 t, i64 b, i64 g, const T* zeros,
                   const T** inputs) {
  const i64 reach = r.reach(t, b);
  for (i64 tap = 0; tap < r.taps; ++tap) {
    const T* input = tap <= reach ? input_at(r, p, state, t, b, g, tap) : nullptr;
    inputs[tap] = input ? input : zeros;
  }
}

template <class T>
std::vector<T> zero_row(const ConvRows& r) {
  return std::vector<T>(static_cast<std::size_t>(r.channels), T(0));
}

void short_conv(const ScanShape& shape, const Tensor& p, const ConvParams& conv, const ScanPositions& positions,
                Tensor* state, Tensor& x) {
  on_float(p.dtype(), [&]<class T>() {
    const LaneTag<T> d;
    const ConvRows r(shape, p, conv, positions);
    const std::vector<Lane<T>> weights = weights_by_tap<T>(conv.weight);
    const std::vector<T> zeros = zero_row<T>(r);
    const T *ps = p.data<T>(), *biases = conv.bias.defined() ? conv.bias.data<T>() : nullptr,
            *before = state ? state->data<T>() : nullptr;
    T* xs = x.data<T>();
    const i64 stride = r.groups * r.channels;
    parallel_for(cpu(p), r.seq * r.batch, rows_per_chunk(stride), [&](i64 begin, i64 end) {
      const T* inputs[8];
      for (i64 row = begin; row < end; ++row) {
        const i64 t = row / r.batch, b = row % r.batch;
        for (i64 g = 0; g < r.groups; ++g) {
          gather_inputs(r, ps, before, t, b, g, zeros.data(), inputs);
          const Lane<T>* w = weights.data() + g * r.channels;
          const T* bias = biases ? biases + g * r.channels : nullptr;
          T* to = xs + r.x_at(t, b, g);
          on_taps(r.taps, [&](auto taps) {
            sweep(d, 0, r.channels, [&](i64 i, auto lanes) HWY_ATTR {
              const auto u = convolve<T>(d, inputs, taps, w, stride, bias, i, lanes);
              store(hn::Mul(u, logistic(d, u)), d, to + i, lanes);
            });
          });
        }
      }
    });
    if (!state) return;
    // The new state may keep rows of the old one.
    T* after = state->data<T>();
    for (i64 k = 0; k < r.taps - 1; ++k) {
      const i64 t = r.seq - (r.taps - 1) + k;
      for (i64 b = 0; b < r.batch; ++b) {
        for (i64 g = 0; g < r.groups; ++g) {
          const T* from = t >= 0 ? ps + r.p_at(t, b, g) : after + r.x_at(k + r.seq, b, g);
          std::copy(from, from + r.channels, after + r.x_at(k, b, g));
        }
      }
    }
  });
}

/// Replaces dx by the gradient of the sum before the activation.
template <class T>
void activation_gradient(const ConvRows& r, const Tensor& p, const std::vector<Lane<T>>& weights, const T* biases,
                         Tensor& dx) {
  const LaneTag<T> d;
  const i64 stride = r.groups * r.channels;
  const std::vector<T> zeros = zero_row<T>(r);
  parallel_for(cpu(p), r.seq * r.batch, rows_per_chunk(stride), [&](i64 begin, i64 end) {
    const T* inputs[8];
    for (i64 row = begin; row < end; ++row) {
      const i64 t = row / r.batch, b = row % r.batch;
      for (i64 g = 0; g < r.groups; ++g) {
        gather_inputs<T>(r, p.data<T>(), nullptr, t, b, g, zeros.data(), inputs);
        T* at = dx.data<T>() + r.x_at(t, b, g);
        const Lane<T>* w = weights.data() + g * r.channels;
        const T* bias = biases ? biases + g * r.channels : nullptr;
        on_taps(r.taps, [&](auto taps) {
          sweep(d, 0, r.channels, [&](i64 i, auto lanes) HWY_ATTR {
            const auto u = convolve<T>(d, inputs, taps, w, stride, bias, i, lanes);
            const auto s = logistic(d, u), value = hn::Mul(u, s);
            store(hn::Mul(load(d, at + i, lanes), hn::NegMulAdd(value, s, hn::Add(value, s))), d, at + i, lanes);
          });
        });
      }
    }
  });
}

/// Computes dp from du, the gradient of the sums.
template <class T>
void input_gradient(const ConvRows& r, const std::vector<Lane<T>>& weights, const Tensor& du, Tensor& dp) {
  const LaneTag<T> d;
  const i64 stride = r.groups * r.channels;
  const std::vector<T> zeros = zero_row<T>(r);
  parallel_for(cpu(dp), r.seq * r.batch, rows_per_chunk(stride), [&](i64 begin, i64 end) {
    for (i64 row = begin; row < end; ++row) {
      const i64 t = row / r.batch, b = row % r.batch;
      for (i64 g = 0; g < r.groups; ++g) {
        const T* gradients[8];
        for (i64 tap = 0; tap < r.taps; ++tap)
          gradients[tap] =
              t + tap < r.seq && tap <= r.reach(t + tap, b) ? du.data<T>() + r.x_at(t + tap, b, g) : zeros.data();
        T* to = dp.data<T>() + r.p_at(t, b, g);
        const Lane<T>* w = weights.data() + g * r.channels;
        on_taps(r.taps, [&](auto taps) {
          sweep(d, 0, r.channels, [&](i64 i, auto lanes) HWY_ATTR {
            store(convolve<T>(d, gradients, taps, w, stride, static_cast<const T*>(nullptr), i, lanes), d, to + i,
                  lanes);
          });
        });
      }
    }
  });
}

/// Adds the gradients of the weight and bias, one block of channels at a time.
template <class T>
void parameter_gradients(const ConvRows& r, const Tensor& p, const Tensor& du, Tensor& d_weight, Tensor* d_bias,
                         float beta) {
  using R = Lane<T>;
  const LaneTag<T> d;
  constexpr i64 kBlock = 64;
  const std::vector<T> zeros = zero_row<T>(r);
  const i64 blocks = ceil_div(r.channels, kBlock);
  parallel_for(cpu(p), r.groups * blocks, 1, [&](i64 begin, i64 end) {
    for (i64 task = begin; task < end; ++task) {
      const i64 g = task / blocks, from = task % blocks * kBlock, count = std::min(kBlock, r.channels - from);
      R sums[9][kBlock] = {};
      const T* inputs[8];
      for (i64 row = 0; row < r.seq * r.batch; ++row) {
        const i64 t = row / r.batch, b = row % r.batch;
        gather_inputs<T>(r, p.data<T>(), nullptr, t, b, g, zeros.data(), inputs);
        const T* gradient = du.data<T>() + r.x_at(t, b, g) + from;
        on_taps(r.taps, [&](auto taps) {
          sweep(d, 0, count, [&](i64 i, auto lanes) HWY_ATTR {
            const auto dy = load(d, gradient + i, lanes);
            store(hn::Add(load(d, sums[8] + i, lanes), dy), d, sums[8] + i, lanes);
            for (i64 tap = 0; tap < taps; ++tap) {
              R* sum = sums[tap] + i;
              store(hn::MulAdd(dy, load(d, inputs[tap] + from + i, lanes), load(d, sum, lanes)), d, sum, lanes);
            }
          });
        });
      }
      const auto add = [beta](R* to, R sum) { *to = beta == 0 ? sum : *to + sum; };
      for (i64 i = 0; i < count; ++i) {
        const i64 channel = g * r.channels + from + i;
        for (i64 tap = 0; tap < r.taps; ++tap)
          add(d_weight.data<R>() + channel * r.taps + r.taps - 1 - tap, sums[tap][i]);
        if (d_bias) add(d_bias->data<R>() + channel, sums[8][i]);
      }
    }
  });
}

void short_conv_backward(const ScanShape& shape, const Tensor& p, const ConvParams& conv,
                         const ScanPositions& positions, Tensor& dx, Tensor& dp, Tensor& d_weight, Tensor* d_bias,
                         float beta) {
  on_float(p.dtype(), [&]<class T>() {
    const ConvRows r(shape, p, conv, positions);
    const std::vector<Lane<T>> weights = weights_by_tap<T>(conv.weight);
    activation_gradient<T>(r, p, weights, conv.bias.defined() ? conv.bias.data<T>() : nullptr, dx);
    parameter_gradients<T>(r, p, dx, d_weight, d_bias, beta);
    input_gradient<T>(r, weights, dx, dp);
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(short_conv);
HWY_EXPORT(short_conv_backward);

template <>
void ScanKernels<DeviceType::Cpu>::short_conv(const ScanShape& shape, const Tensor& p, const ConvParams& conv,
                                              const ScanPositions& positions, Tensor* state, Tensor& x) {
  HWY_DYNAMIC_DISPATCH(short_conv)(shape, p, conv, positions, state, x);
}

template <>
void ScanKernels<DeviceType::Cpu>::short_conv_backward(const ScanShape& shape, const Tensor& p, const ConvParams& conv,
                                                       const ScanPositions& positions, Tensor& dx, Tensor& dp,
                                                       Tensor& d_weight, Tensor* d_bias, float beta) {
  HWY_DYNAMIC_DISPATCH(short_conv_backward)(shape, p, conv, positions, dx, dp, d_weight, d_bias, beta);
}

}  // namespace mcpp
#endif  // HWY_ONCE
