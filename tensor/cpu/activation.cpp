#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/activation.cpp"
#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/math-inl.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/ops/kernels.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Value and derivative: f(x) and df/dx.
template <class V>
struct ValueAndSlope {
  V value, slope;
};

/// GELU in tanh form: x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3); (1 + tanh(u)) / 2 is the logistic
/// function of 2 u.
template <class D>
HWY_INLINE ValueAndSlope<hn::Vec<D>> evaluate(std::integral_constant<Activation, Activation::Gelu>, D d, hn::Vec<D> x) {
  using L = hn::TFromD<D>;
  constexpr double kLinear = 1.5957691216057308, kCubic = kLinear * 0.044715;  // coefficients of 2 u
  const auto x2 = hn::Mul(x, x), linear = hn::Set(d, static_cast<L>(kLinear));
  const auto s = logistic(d, hn::Mul(x, hn::MulAdd(x2, hn::Set(d, static_cast<L>(kCubic)), linear)));
  const auto inner = hn::MulAdd(x2, hn::Set(d, static_cast<L>(3 * kCubic)), linear);
  const auto value = hn::Mul(x, s);
  return {value, hn::MulAdd(hn::NegMulAdd(value, s, value), inner, s)};
}

/// Exact GELU: x P(X <= x) for a standard normal X.
template <class D>
HWY_INLINE ValueAndSlope<hn::Vec<D>> evaluate(std::integral_constant<Activation, Activation::GeluErf>, D d,
                                              hn::Vec<D> x) {
  const auto p = normal(d, x);
  return {hn::Mul(x, p.cdf), hn::MulAdd(x, p.density, p.cdf)};
}

/// Squared ReLU: max(x, 0)^2. Uses a comparison because Max drops NaN on some processors.
template <class D>
HWY_INLINE ValueAndSlope<hn::Vec<D>> evaluate(std::integral_constant<Activation, Activation::SquaredRelu>, D d,
                                              hn::Vec<D> x) {
  const auto positive = hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);
  return {hn::Mul(positive, positive), hn::Add(positive, positive)};
}

/// SwiGLU gate: silu(x) = x / (1 + exp(-x)).
template <class D>
HWY_INLINE ValueAndSlope<hn::Vec<D>> evaluate(std::integral_constant<Activation, Activation::SwiGlu>, D d,
                                              hn::Vec<D> x) {
  const auto s = logistic(d, x);
  const auto value = hn::Mul(x, s);
  return {value, hn::NegMulAdd(value, s, hn::Add(value, s))};
}

/// GeGLU gate.
template <class D>
HWY_INLINE ValueAndSlope<hn::Vec<D>> evaluate(std::integral_constant<Activation, Activation::GeGlu>, D d,
                                              hn::Vec<D> x) {
  return evaluate(std::integral_constant<Activation, Activation::Gelu>(), d, x);
}

/// Quick GELU gate: x sigmoid(1.702 x).
template <class D>
HWY_INLINE ValueAndSlope<hn::Vec<D>> evaluate(std::integral_constant<Activation, Activation::QuickGeGlu>, D d,
                                              hn::Vec<D> x) {
  const auto scaled = hn::Mul(x, hn::Set(d, static_cast<hn::TFromD<D>>(1.702)));
  const auto s = logistic(d, scaled);
  return {hn::Mul(x, s), hn::MulAdd(hn::NegMulAdd(s, s, s), scaled, s)};
}

/// Calls f.template operator()<T>(kind) with the element type and the activation as types.
template <class F>
void on_function(DType dtype, Activation a, F&& f) {
  on_float(dtype, [&]<class T>() {
    switch (a) {
      case Activation::Gelu:
        return f.template operator()<T>(std::integral_constant<Activation, Activation::Gelu>());
      case Activation::GeluErf:
        return f.template operator()<T>(std::integral_constant<Activation, Activation::GeluErf>());
      case Activation::SquaredRelu:
        return f.template operator()<T>(std::integral_constant<Activation, Activation::SquaredRelu>());
      case Activation::SwiGlu:
        return f.template operator()<T>(std::integral_constant<Activation, Activation::SwiGlu>());
      case Activation::GeGlu:
        return f.template operator()<T>(std::integral_constant<Activation, Activation::GeGlu>());
      case Activation::QuickGeGlu:
        return f.template operator()<T>(std::integral_constant<Activation, Activation::QuickGeGlu>());
    }
  });
}

/// Limits of gate and up in a gated activation, and the offset of up. Comparisons preserve NaN.
template <class D>
struct Limits {
  using V = hn::Vec<D>;

  Limits(const ActivationRule& rule)
      : clamp(rule.clamp > 0 ? static_cast<hn::TFromD<D>>(rule.clamp) : std::numeric_limits<hn::TFromD<D>>::infinity()),
        offset(static_cast<hn::TFromD<D>>(rule.up_offset)) {}

  HWY_INLINE auto exceeds(D d, V x) const { return hn::Gt(x, hn::Set(d, clamp)); }
  HWY_INLINE V gate(D d, V x) const { return hn::IfThenElse(exceeds(d, x), hn::Set(d, clamp), x); }
  HWY_INLINE V up(D d, V x) const {
    const auto low = hn::Set(d, -clamp), from_above = gate(d, x);
    return hn::Add(hn::IfThenElse(hn::Lt(x, low), low, from_above), hn::Set(d, offset));
  }
  /// Return the gradient of the unlimited value, given the gradient of the limited value.
  HWY_INLINE V gate_gradient(D d, V x, V gradient) const { return hn::IfThenZeroElse(exceeds(d, x), gradient); }
  HWY_INLINE V up_gradient(D d, V x, V gradient) const {
    return hn::IfThenZeroElse(hn::Or(exceeds(d, x), hn::Lt(x, hn::Set(d, -clamp))), gradient);
  }

  hn::TFromD<D> clamp, offset;
};

/// Limits of an activation without any.
template <class D>
struct NoLimits {
  using V = hn::Vec<D>;

  NoLimits(const ActivationRule&) {}

  HWY_INLINE V gate(D, V x) const { return x; }
  HWY_INLINE V up(D, V x) const { return x; }
  HWY_INLINE V gate_gradient(D, V, V gradient) const { return gradient; }
  HWY_INLINE V up_gradient(D, V, V gradient) const { return gradient; }
};

/// Calls f.template operator()<T>(kind, limits) with the element type, the activation and its limits as types.
template <class F>
void on_activation(DType dtype, const ActivationRule& rule, F&& f) {
  on_function(dtype, rule.function, [&]<class T>(auto kind) {
    if constexpr (is_gated(kind.value)) {
      if (rule.is_limited()) return f.template operator()<T>(kind, Limits<LaneTag<T>>(rule));
    }
    return f.template operator()<T>(kind, NoLimits<LaneTag<T>>(rule));
  });
}

/// Returns x[i] + bias[i], or x[i] without a bias.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_biased(D d, const T* x, const T* bias, i64 i, auto lanes) {
  const auto v = load(d, x + i, lanes);
  return bias ? hn::Add(v, load(d, bias + i, lanes)) : v;
}

void activation(const ActivationRule& a, const Tensor& x, const Tensor* bias, Tensor& y) {
  on_activation(x.dtype(), a, [&]<class T>(auto kind, auto limits) {
    const LaneTag<T> d;
    const i64 f = is_gated(kind.value) ? x.dim(-1) / 2 : x.dim(-1), width = x.dim(-1);
    const T *xs = x.data<T>(), *b = bias ? bias->data<T>() : nullptr;
    T* ys = y.data<T>();
    parallel_for(cpu(x), row_count(x), rows_per_chunk(width), [=](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        const T* row = xs + r * width;
        sweep(d, 0, f, [=, to = ys + r * f](i64 i, auto lanes) {
          auto value = evaluate(kind, d, limits.gate(d, load_biased(d, row, b, i, lanes))).value;
          if constexpr (is_gated(kind.value))
            value = hn::Mul(value, limits.up(d, load_biased(d, row, b, f + i, lanes)));
          store(value, d, to + i, lanes);
        });
      }
    });
  });
}

void activation_backward(const ActivationRule& a, const Tensor& dy, const Tensor& x, const Tensor* bias, Tensor& dx) {
  on_activation(x.dtype(), a, [&]<class T>(auto kind, auto limits) {
    const LaneTag<T> d;
    const i64 f = is_gated(kind.value) ? x.dim(-1) / 2 : x.dim(-1), width = x.dim(-1);
    const T *dys = dy.data<T>(), *xs = x.data<T>(), *b = bias ? bias->data<T>() : nullptr;
    T* dxs = dx.data<T>();
    parallel_for(cpu(x), row_count(x), rows_per_chunk(width), [=](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        const T *row = xs + r * width, *from = dys + r * f;
        sweep(d, 0, f, [=, to = dxs + r * width](i64 i, auto lanes) {
          const auto gradient = load(d, from + i, lanes);
          const auto input = load_biased(d, row, b, i, lanes);
          const auto gate = evaluate(kind, d, limits.gate(d, input));
          if constexpr (is_gated(kind.value)) {
            const auto up = load_biased(d, row, b, f + i, lanes);
            const auto d_gate = hn::Mul(hn::Mul(gradient, limits.up(d, up)), gate.slope);
            store(limits.gate_gradient(d, input, d_gate), d, to + i, lanes);
            store(limits.up_gradient(d, up, hn::Mul(gradient, gate.value)), d, to + f + i, lanes);
          } else {
            store(hn::Mul(gradient, gate.slope), d, to + i, lanes);
          }
        });
      }
    });
  });
}

void sigmoid_gate(const Tensor& x, const Tensor& gate, Tensor& y) {
  on_float(x.dtype(), [&]<class T>() {
    const LaneTag<T> d;
    const T *xs = x.data<T>(), *gates = gate.data<T>();
    T* ys = y.data<T>();
    parallel_for(cpu(x), x.numel(), kElementsPerChunk, [=](i64 begin, i64 end) {
      sweep(d, begin, end, [=](i64 i, auto lanes) {
        store(hn::Mul(load(d, xs + i, lanes), logistic(d, load(d, gates + i, lanes))), d, ys + i, lanes);
      });
    });
  });
}

void sigmoid_gate_backward(const Tensor& dy, const Tensor& x, const Tensor& gate, Tensor& dx, Tensor& d_gate) {
  on_float(dy.dtype(), [&]<class T>() {
    const LaneTag<T> d;
    const T *dys = dy.data<T>(), *xs = x.data<T>(), *gates = gate.data<T>();
    T *dxs = dx.data<T>(), *d_gates = d_gate.data<T>();
    parallel_for(cpu(dy), dy.numel(), kElementsPerChunk, [=](i64 begin, i64 end) {
      sweep(d, begin, end, [=](i64 i, auto lanes) {
        const auto s = logistic(d, load(d, gates + i, lanes)), scaled = hn::Mul(load(d, dys + i, lanes), s);
        const auto value = load(d, xs + i, lanes), rest = hn::Sub(hn::Set(d, hn::TFromD<decltype(d)>{1}), s);
        store(scaled, d, dxs + i, lanes);
        store(hn::Mul(hn::Mul(scaled, value), rest), d, d_gates + i, lanes);
      });
    });
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(activation);
HWY_EXPORT(activation_backward);
HWY_EXPORT(sigmoid_gate);
HWY_EXPORT(sigmoid_gate_backward);

template <>
void Kernels<DeviceType::Cpu>::activation(const ActivationRule& a, const Tensor& x, const Tensor* bias, Tensor& y) {
  HWY_DYNAMIC_DISPATCH(activation)(a, x, bias, y);
}

template <>
void Kernels<DeviceType::Cpu>::activation_backward(const ActivationRule& a, const Tensor& dy, const Tensor& x,
                                                   const Tensor* bias, Tensor& dx) {
  HWY_DYNAMIC_DISPATCH(activation_backward)(a, dy, x, bias, dx);
}

template <>
void Kernels<DeviceType::Cpu>::sigmoid_gate(const Tensor& x, const Tensor& gate, Tensor& y) {
  HWY_DYNAMIC_DISPATCH(sigmoid_gate)(x, gate, y);
}

template <>
void Kernels<DeviceType::Cpu>::sigmoid_gate_backward(const Tensor& dy, const Tensor& x, const Tensor& gate, Tensor& dx,
                                                     Tensor& d_gate) {
  HWY_DYNAMIC_DISPATCH(sigmoid_gate_backward)(dy, x, gate, dx, d_gate);
}

}  // namespace mcpp
#endif  // HWY_ONCE
