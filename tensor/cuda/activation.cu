#include <limits>

#include "tensor/cuda/rows.cuh"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

/// Value and derivative: f(x) and df/dx.
template <class W>
struct ValueAndSlope {
  W value, slope;
};

/// Computes 1 / (1 + exp(-x)). For low-precision types uses the GPU's fast exp and division, whose error of 1e-5 is far
/// below the rounding of bf16 and fp16; they make the kernel memory-bound instead of compute-bound.
template <class E, class W>
__device__ __forceinline__ W logistic(W x) {
  if constexpr (kIsLowPrecisionElement<E>)
    return __fdividef(1.0f, 1.0f + __expf(-x));
  else
    return W{1} / (W{1} + exp(-x));
}

/// GELU in tanh form: x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3); (1 + tanh(u)) / 2 is the logistic
/// function of 2 u.
struct Gelu {
  static constexpr bool kIsGated = false;

  template <class E, class W>
  static __device__ __forceinline__ ValueAndSlope<W> evaluate(W x) {
    constexpr double kLinear = 1.5957691216057308, kCubic = kLinear * 0.044715;  // coefficients of 2 u
    const W x2 = x * x;
    const W s = logistic<E>(x * fma(x2, static_cast<W>(kCubic), static_cast<W>(kLinear)));
    const W inner = fma(x2, static_cast<W>(3 * kCubic), static_cast<W>(kLinear));
    const W value = x * s;
    return {value, fma(fma(-value, s, value), inner, s)};
  }
};

/// Exact GELU: x P(X <= x) for a standard normal X.
struct GeluErf {
  static constexpr bool kIsGated = false;

  template <class E, class W>
  static __device__ __forceinline__ ValueAndSlope<W> evaluate(W x) {
    const W cdf = normcdf(x), density = exp(x * x * W(-0.5)) * W(0.39894228040143268);
    return {x * cdf, fma(x, density, cdf)};
  }
};

/// Squared ReLU: max(x, 0)^2; NaN is preserved.
struct SquaredRelu {
  static constexpr bool kIsGated = false;

  template <class E, class W>
  static __device__ __forceinline__ ValueAndSlope<W> evaluate(W x) {
    const W positive = x < 0 ? W{0} : x;
    return {positive * positive, positive + positive};
  }
};

/// SwiGLU gate: silu(x) = x / (1 + exp(-x)).
struct SwiGlu {
  static constexpr bool kIsGated = true;

  template <class E, class W>
  static __device__ __forceinline__ ValueAndSlope<W> evaluate(W x) {
    const W s = logistic<E>(x), value = x * s;
    return {value, fma(-value, s, value + s)};
  }
};

/// GeGLU gate.
struct GeGlu : Gelu {
  static constexpr bool kIsGated = true;
};

/// Quick GELU gate: x sigmoid(1.702 x).
struct QuickGeGlu {
  static constexpr bool kIsGated = true;

  template <class E, class W>
  static __device__ __forceinline__ ValueAndSlope<W> evaluate(W x) {
    const W scaled = x * static_cast<W>(1.702), s = logistic<E>(scaled);
    return {x * s, fma(fma(-s, s, s), scaled, s)};
  }
};

/// Limits of gate and up in a gated activation, and the offset of up. Comparisons preserve NaN.
template <class W>
struct Limits {
  W clamp, offset;

  __device__ __forceinline__ W gate(W x) const { return x > clamp ? clamp : x; }
  __device__ __forceinline__ W up(W x) const { return (x < -clamp ? -clamp : gate(x)) + offset; }
  /// Return the gradient of the unlimited value, given the gradient of the limited value.
  __device__ __forceinline__ W gate_gradient(W x, W gradient) const { return x > clamp ? W{0} : gradient; }
  __device__ __forceinline__ W up_gradient(W x, W gradient) const { return x > clamp || x < -clamp ? W{0} : gradient; }
};
template <class W>
Limits<W> limits_of(const ActivationRule& rule) {
  return {rule.clamp > 0 ? static_cast<W>(rule.clamp) : std::numeric_limits<W>::infinity(),
          static_cast<W>(rule.up_offset)};
}

/// A thread's columns of x, gate and up if gated, for several rows at once.
template <class E, int kUnit, class Act>
struct Inputs {
  static constexpr int kHalves = Act::kIsGated ? 2 : 1;
  static constexpr int kUnroll = 2;

  Pack<E, kUnit> bias[kHalves], x[kUnroll][kHalves];

  __device__ __forceinline__ void load_biases(const E* from, i64 f, i64 i) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) bias[half] = load_bias<E, kUnit>(from, half * f + i);
  }
  __device__ __forceinline__ void load(int k, const E* row, i64 f, i64 i) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) x[k][half] = load_pack<E, kUnit>(row + half * f + i);
  }
  __device__ __forceinline__ AccumulateType<E> biased(int k, int half, int j) const {
    return widen(x[k][half].values[j]) + widen(bias[half].values[j]);
  }
};

/// Computes y [rows, f] = act(x + bias), times up + bias if gated.
template <class E, int kUnit, class Act>
__global__ void activate(const E* x, const E* bias, E* y, i64 rows, i64 f, Limits<AccumulateType<E>> limits) {
  using In = Inputs<E, kUnit, Act>;
  const i64 i = first_column<kUnit>();
  if (i >= f) return;
  In in;
  in.load_biases(bias, f, i);
  sweep_rows<In::kUnroll>(
      rows, [&](int k, i64 row) { in.load(k, x + row * In::kHalves * f, f, i); },
      [&](int k, i64 row) {
        Pack<E, kUnit> out;
#pragma unroll
        for (int j = 0; j < kUnit; ++j) {
          const AccumulateType<E> x0 = in.biased(k, 0, j);
          AccumulateType<E> value = Act::template evaluate<E>(Act::kIsGated ? limits.gate(x0) : x0).value;
          if constexpr (Act::kIsGated) value *= limits.up(in.biased(k, 1, j));
          out.values[j] = narrow<E>(value);
        }
        store_pack(y + row * f + i, out);
      });
}

/// A thread reads everything it overwrites before it writes, so dx may alias x.
template <class E, int kUnit, class Act>
__global__ void activate_backward(const E* dy, const E* x, const E* bias, E* dx, i64 rows, i64 f,
                                  Limits<AccumulateType<E>> limits) {
  using In = Inputs<E, kUnit, Act>;
  const i64 i = first_column<kUnit>(), width = In::kHalves * f;
  if (i >= f) return;
  In in;
  in.load_biases(bias, f, i);
  Pack<E, kUnit> gradient[In::kUnroll];
  const auto load = [&](int k, i64 row) {
    in.load(k, x + row * width, f, i);
    gradient[k] = load_pack<E, kUnit>(dy + row * f + i);
  };
  const auto use = [&](int k, i64 row) {
    Pack<E, kUnit> out[In::kHalves];
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      const AccumulateType<E> x0 = in.biased(k, 0, j);
      const auto gate = Act::template evaluate<E>(Act::kIsGated ? limits.gate(x0) : x0);
      AccumulateType<E> g = widen(gradient[k].values[j]);
      if constexpr (Act::kIsGated) {
        const AccumulateType<E> up = in.biased(k, 1, j);
        out[1].values[j] = narrow<E>(limits.up_gradient(up, g * gate.value));
        g = limits.gate_gradient(x0, g * limits.up(up));
      }
      out[0].values[j] = narrow<E>(g * gate.slope);
    }
#pragma unroll
    for (int half = 0; half < In::kHalves; ++half) store_pack(dx + row * width + half * f + i, out[half]);
  };
  sweep_rows<In::kUnroll>(rows, load, use);
}

/// Computes y [rows, n] = x * sigmoid(gate). A thread reads what it overwrites first, so y may alias an input.
template <class E, int kUnit>
__global__ void apply_sigmoid_gate(const E* x, const E* gate, E* y, i64 rows, i64 n) {
  constexpr int kUnroll = 2;
  const i64 i = first_column<kUnit>();
  if (i >= n) return;
  Pack<E, kUnit> value[kUnroll], g[kUnroll];
  const auto load = [&](int k, i64 row) {
    value[k] = load_pack<E, kUnit>(x + row * n + i);
    g[k] = load_pack<E, kUnit>(gate + row * n + i);
  };
  sweep_rows<kUnroll>(rows, load, [&](int k, i64 row) {
#pragma unroll
    for (int j = 0; j < kUnit; ++j)
      value[k].values[j] = narrow<E>(widen(value[k].values[j]) * logistic<E>(widen(g[k].values[j])));
    store_pack(y + row * n + i, value[k]);
  });
}

/// dx and d_gate may each alias an input, as above.
template <class E, int kUnit>
__global__ void apply_sigmoid_gate_backward(const E* dy, const E* x, const E* gate, E* dx, E* d_gate, i64 rows, i64 n) {
  constexpr int kUnroll = 2;
  const i64 i = first_column<kUnit>();
  if (i >= n) return;
  Pack<E, kUnit> gradient[kUnroll], value[kUnroll], g[kUnroll];
  const auto load = [&](int k, i64 row) {
    gradient[k] = load_pack<E, kUnit>(dy + row * n + i);
    value[k] = load_pack<E, kUnit>(x + row * n + i);
    g[k] = load_pack<E, kUnit>(gate + row * n + i);
  };
  sweep_rows<kUnroll>(rows, load, [&](int k, i64 row) {
#pragma unroll
    for (int j = 0; j < kUnit; ++j) {
      const auto s = logistic<E>(widen(g[k].values[j])), scaled = widen(gradient[k].values[j]) * s;
      gradient[k].values[j] = narrow<E>(scaled);
      g[k].values[j] = narrow<E>(scaled * widen(value[k].values[j]) * (1 - s));
    }
    store_pack(dx + row * n + i, gradient[k]);
    store_pack(d_gate + row * n + i, g[k]);
  });
}

/// Calls f.template operator()<T, E, Act>() with the element types and the activation as types.
template <class F>
void on_activation(DType dtype, Activation a, F&& f) {
  on_float(dtype, [&]<class T>() {
    using E = Element<T>;
    switch (a) {
      case Activation::Gelu:
        return f.template operator()<T, E, Gelu>();
      case Activation::GeluErf:
        return f.template operator()<T, E, GeluErf>();
      case Activation::SquaredRelu:
        return f.template operator()<T, E, SquaredRelu>();
      case Activation::SwiGlu:
        return f.template operator()<T, E, SwiGlu>();
      case Activation::GeGlu:
        return f.template operator()<T, E, GeGlu>();
      case Activation::QuickGeGlu:
        return f.template operator()<T, E, QuickGeGlu>();
    }
  });
}

/// Returns null without a bias.
template <class T>
const Element<T>* bias_elements(const Tensor* bias) {
  return bias ? elements<T>(*bias) : nullptr;
}

/// Returns the width of the activation's output.
i64 output_width(Activation a, const Tensor& x) {
  return is_gated(a) ? x.dim(-1) / 2 : x.dim(-1);
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::activation(const ActivationRule& a, const Tensor& x, const Tensor* bias, Tensor& y) {
  if (y.numel() == 0) return;
  CudaDevice& device = cuda(x);
  const i64 rows = row_count(x), f = output_width(a.function, x);
  on_activation(x.dtype(), a.function, [&]<class T, class E, class Act>() {
    const E *from = elements<T>(x), *b = bias_elements<T>(bias);
    E* to = elements<T>(y);
    on_unit<E>(is_packable(f, from, b, to), [&]<int kUnit>() {
      const auto [grid, block] = columns_launch(f / kUnit, rows, device);
      launch(activate<E, kUnit, Act>, grid, block, 0, device.stream(), from, b, to, rows, f,
             limits_of<AccumulateType<E>>(a));
    });
  });
}

template <>
void Kernels<DeviceType::Cuda>::activation_backward(const ActivationRule& a, const Tensor& dy, const Tensor& x,
                                                    const Tensor* bias, Tensor& dx) {
  if (dy.numel() == 0) return;
  CudaDevice& device = cuda(x);
  const i64 rows = row_count(x), f = output_width(a.function, x);
  on_activation(x.dtype(), a.function, [&]<class T, class E, class Act>() {
    const E *gradient = elements<T>(dy), *from = elements<T>(x), *b = bias_elements<T>(bias);
    E* to = elements<T>(dx);
    on_unit<E>(is_packable(f, gradient, from, b, to), [&]<int kUnit>() {
      const auto [grid, block] = columns_launch(f / kUnit, rows, device);
      launch(activate_backward<E, kUnit, Act>, grid, block, 0, device.stream(), gradient, from, b, to, rows, f,
             limits_of<AccumulateType<E>>(a));
    });
  });
}

template <>
void Kernels<DeviceType::Cuda>::sigmoid_gate(const Tensor& x, const Tensor& gate, Tensor& y) {
  if (x.numel() == 0) return;
  CudaDevice& device = cuda(x);
  const i64 rows = row_count(x), n = x.dim(-1);
  on_float(x.dtype(), [&]<class T>() {
    using E = Element<T>;
    const E *from = elements<T>(x), *gates = elements<T>(gate);
    E* to = elements<T>(y);
    on_unit<E>(is_packable(n, from, gates, to), [&]<int kUnit>() {
      const auto [grid, block] = columns_launch(n / kUnit, rows, device);
      launch(apply_sigmoid_gate<E, kUnit>, grid, block, 0, device.stream(), from, gates, to, rows, n);
    });
  });
}

template <>
void Kernels<DeviceType::Cuda>::sigmoid_gate_backward(const Tensor& dy, const Tensor& x, const Tensor& gate, Tensor& dx,
                                                      Tensor& d_gate) {
  if (dy.numel() == 0) return;
  CudaDevice& device = cuda(dy);
  const i64 rows = row_count(dy), n = dy.dim(-1);
  on_float(dy.dtype(), [&]<class T>() {
    using E = Element<T>;
    const E *gradient = elements<T>(dy), *from = elements<T>(x), *gates = elements<T>(gate);
    E *to = elements<T>(dx), *d_gates = elements<T>(d_gate);
    on_unit<E>(is_packable(n, gradient, from, gates, to, d_gates), [&]<int kUnit>() {
      const auto [grid, block] = columns_launch(n / kUnit, rows, device);
      launch(apply_sigmoid_gate_backward<E, kUnit>, grid, block, 0, device.stream(), gradient, from, gates, to, d_gates,
             rows, n);
    });
  });
}

}  // namespace mcpp
