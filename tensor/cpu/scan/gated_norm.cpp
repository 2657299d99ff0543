#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/scan/gated_norm.cpp"
#include <algorithm>
#include <cmath>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/math-inl.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/ops/scan/gated_scan.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Gate of a norm.
struct GateRule {
  bool is_first;    // it multiplies the input of the norm
  bool is_sigmoid;  // sigmoid(z), otherwise silu(z)
};

/// Segments of a row that are normalized separately: heads, or groups of heads.
struct NormSegments {
  GateRule gate;
  i64 size, per_group, groups, width, gate_offset;

  explicit NormSegments(const ScanShape& shape)
      : gate{.is_first = !shape.is_delta(), .is_sigmoid = shape.decays_channels()},
        size(gate.is_first ? shape.gate_width() : shape.value_dim),
        per_group(gate.is_first ? 1 : shape.heads_per_group),
        groups(shape.groups),
        width(shape.width()),
        gate_offset(shape.conv_width()) {}

  i64 count() const { return groups * per_group; }
  i64 y_at(i64 row, i64 segment) const { return (row * count() + segment) * size; }
  i64 gate_at(i64 row, i64 segment) const {
    return (row * groups + segment / per_group) * width + gate_offset + segment % per_group * size;
  }
  i64 weight_at(i64 segment) const { return gate.is_first ? segment * size : 0; }
};

/// Returns silu(z) or sigmoid(z).
template <class D>
HWY_INLINE hn::Vec<D> gate_of(D d, hn::Vec<D> z, bool is_sigmoid) {
  const auto s = logistic(d, z);
  return is_sigmoid ? s : hn::Mul(z, s);
}
/// Returns its derivative.
template <class D>
HWY_INLINE hn::Vec<D> slope_of_gate(D d, hn::Vec<D> z, bool is_sigmoid) {
  const auto one = hn::Set(d, hn::TFromD<D>{1}), s = logistic(d, z);
  return hn::Mul(s, is_sigmoid ? hn::Sub(one, s) : hn::MulAdd(z, hn::Sub(one, s), one));
}

/// Returns 1 / sqrt(mean of squares + eps) of the input of the norm.
template <class T>
Lane<T> inverse_length(const T* y, const T* z, i64 size, GateRule rule, double eps) {
  const LaneTag<T> d;
  Sum<LaneTag<T>> squares;
  sweep_slots(d, 0, size, [&](i64 i, auto lanes, int slot) HWY_ATTR {
    auto value = load(d, y + i, lanes);
    if (rule.is_first) value = hn::Mul(value, gate_of(d, load(d, z + i, lanes), rule.is_sigmoid));
    squares.add_product(value, value, slot);
  });
  return static_cast<Lane<T>>(1 / std::sqrt(static_cast<double>(squares.total()) / static_cast<double>(size) + eps));
}

void gated_norm(const ScanShape& shape, const Tensor& y, const Tensor& p, const Tensor& w, double eps, Tensor& out) {
  on_float(p.dtype(), [&]<class T>() {
    const LaneTag<T> d;
    const NormSegments segments(shape);
    const i64 rows = p.dim(0) * p.dim(1);
    parallel_for(cpu(p), rows, rows_per_chunk(segments.count() * segments.size), [&](i64 begin, i64 end) {
      for (i64 task = begin * segments.count(); task < end * segments.count(); ++task) {
        const i64 row = task / segments.count(), segment = task % segments.count();
        const T *from = y.data<T>() + segments.y_at(row, segment), *z = p.data<T>() + segments.gate_at(row, segment),
                *weight = w.data<T>() + segments.weight_at(segment);
        T* to = out.data<T>() + segments.y_at(row, segment);
        const auto scale = hn::Set(d, inverse_length(from, z, segments.size, segments.gate, eps));
        sweep(d, 0, segments.size, [&](i64 i, auto lanes) HWY_ATTR {
          const auto gate = gate_of(d, load(d, z + i, lanes), segments.gate.is_sigmoid);
          const auto value = hn::Mul(hn::Mul(load(d, from + i, lanes), gate), scale);
          store(hn::Mul(value, load(d, weight + i, lanes)), d, to + i, lanes);
        });
      }
    });
  });
}

/// Pointers to one segment.
template <class T>
struct NormSegment {
  const T *d_out, *y, *z, *w;
  T *dy, *dz;
  Lane<T>* dw;
};

/// With n the input of the norm times its scale r, and e the gradient of n: the gradient of the input is r (e - n
/// mean(n e)).
template <class T>
void segment_backward(const NormSegment<T>& x, i64 size, GateRule rule, double eps) {
  const LaneTag<T> d;
  const auto scale = hn::Set(d, inverse_length(x.y, x.z, size, rule, eps));
  Sum<LaneTag<T>> products;
  sweep_slots(d, 0, size, [&](i64 i, auto lanes, int slot) HWY_ATTR {
    const auto gate = gate_of(d, load(d, x.z + i, lanes), rule.is_sigmoid);
    const auto value = hn::Mul(hn::Mul(load(d, x.y + i, lanes), gate), scale);
    const auto gradient = load(d, x.d_out + i, lanes);
    products.add_product(hn::Mul(gradient, load(d, x.w + i, lanes)), value, slot);
    store(hn::MulAdd(gradient, value, load(d, x.dw + i, lanes)), d, x.dw + i, lanes);
  });
  const auto mean = hn::Set(d, static_cast<Lane<T>>(products.total() / static_cast<Lane<T>>(size)));
  sweep(d, 0, size, [&](i64 i, auto lanes) HWY_ATTR {
    const auto z = load(d, x.z + i, lanes);
    const auto gate = gate_of(d, z, rule.is_sigmoid), slope = slope_of_gate(d, z, rule.is_sigmoid);
    const auto value = load(d, x.y + i, lanes), e = hn::Mul(load(d, x.d_out + i, lanes), load(d, x.w + i, lanes));
    if (rule.is_first) {
      const auto input = hn::Mul(value, gate);
      const auto d_input = hn::Mul(scale, hn::NegMulAdd(hn::Mul(input, scale), mean, e));
      store(hn::Mul(d_input, gate), d, x.dy + i, lanes);
      store(hn::Mul(hn::Mul(d_input, value), slope), d, x.dz + i, lanes);
    } else {
      const auto normalized = hn::Mul(value, scale);
      store(hn::Mul(scale, hn::NegMulAdd(normalized, mean, hn::Mul(e, gate))), d, x.dy + i, lanes);
      store(hn::Mul(hn::Mul(e, normalized), slope), d, x.dz + i, lanes);
    }
  });
}

void gated_norm_backward(const ScanShape& shape, const Tensor& d_out, const Tensor& y, const Tensor& p, const Tensor& w,
                         double eps, Tensor& dy, Tensor& dp, Tensor& dw) {
  on_float(p.dtype(), [&]<class T>() {
    const NormSegments segments(shape);
    const i64 rows = p.dim(0) * p.dim(1);
    parallel_for(cpu(p), rows, ops::kGatedNormRows, [&](i64 begin, i64 end) {
      Lane<T>* sums = dw.data<Lane<T>>() + begin / ops::kGatedNormRows * w.numel();
      std::fill(sums, sums + w.numel(), Lane<T>{0});
      for (i64 task = begin * segments.count(); task < end * segments.count(); ++task) {
        const i64 row = task / segments.count(), segment = task % segments.count();
        const i64 at = segments.y_at(row, segment), gate = segments.gate_at(row, segment),
                  weight = segments.weight_at(segment);
        segment_backward<T>({.d_out = d_out.data<T>() + at,
                             .y = y.data<T>() + at,
                             .z = p.data<T>() + gate,
                             .w = w.data<T>() + weight,
                             .dy = dy.data<T>() + at,
                             .dz = dp.data<T>() + gate,
                             .dw = sums + weight},
                            segments.size, segments.gate, eps);
      }
    });
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(gated_norm);
HWY_EXPORT(gated_norm_backward);

template <>
void ScanKernels<DeviceType::Cpu>::gated_norm(const ScanShape& shape, const Tensor& y, const Tensor& p, const Tensor& w,
                                              double eps, Tensor& out) {
  HWY_DYNAMIC_DISPATCH(gated_norm)(shape, y, p, w, eps, out);
}

template <>
void ScanKernels<DeviceType::Cpu>::gated_norm_backward(const ScanShape& shape, const Tensor& d_out, const Tensor& y,
                                                       const Tensor& p, const Tensor& w, double eps, Tensor& dy,
                                                       Tensor& dp, Tensor& dw) {
  HWY_DYNAMIC_DISPATCH(gated_norm_backward)(shape, d_out, y, p, w, eps, dy, dp, dw);
}

}  // namespace mcpp
#endif  // HWY_ONCE
