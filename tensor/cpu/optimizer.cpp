#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tensor/cpu/optimizer.cpp"
#include <cmath>

#include "hwy/foreach_target.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/cpu/simd/simd-inl.h"
#include "tensor/ops/kernels.h"
#include "tensor/ops/weight_update.h"

HWY_BEFORE_NAMESPACE();
namespace mcpp::HWY_NAMESPACE {

/// Returns the factor of the gradient; non-finite = no update.
double factor_of(const Tensor& factor, double grad_scale = 1) {
  return factor.defined() ? grad_scale * *factor.data<double>() : grad_scale;
}

void adamw(Tensor& master, Tensor& m, Tensor& v, const Tensor& grad, const AdamWStep& step, Tensor* model) {
  const double factor = factor_of(step.factor, step.grad_scale);
  if (!std::isfinite(factor)) return;
  const double steps = static_cast<double>(step.step);
  const double first_correction = 1 / (1 - std::pow(step.beta1, steps));
  const double second_correction = 1 / (1 - std::pow(step.beta2, steps));
  on_weight_dtypes(master, model, [&]<class T, class M>() {
    M* copies = model ? model->data<M>() : nullptr;
    const LaneTag<T> d;
    T *ws = master.data<T>(), *ms = m.data<T>(), *vs = v.data<T>();
    const T* gs = grad.data<T>();
    const auto constant = [=](double x) { return static_cast<T>(x); };
    const T beta1 = constant(step.beta1), rest1 = constant(1 - step.beta1), beta2 = constant(step.beta2),
            rest2 = constant(1 - step.beta2), correct1 = constant(first_correction),
            correct2 = constant(second_correction), eps = constant(step.eps), decay = constant(step.weight_decay),
            lr = constant(step.lr), grad_scale = constant(factor);
    parallel_for(cpu(master), master.numel(), kElementsPerChunk, [=](i64 begin, i64 end) {
      sweep(d, begin, end, [=](i64 i, auto lanes) {
        const auto all = [=](T x) { return hn::Set(d, x); };
        const auto g = hn::Mul(load(d, gs + i, lanes), all(grad_scale)), w = load(d, ws + i, lanes);
        const auto first = hn::MulAdd(all(rest1), g, hn::Mul(all(beta1), load(d, ms + i, lanes)));
        const auto second = hn::MulAdd(hn::Mul(all(rest2), g), g, hn::Mul(all(beta2), load(d, vs + i, lanes)));
        const auto root = hn::Add(hn::Sqrt(hn::Mul(second, all(correct2))), all(eps));
        const auto update = hn::MulAdd(all(decay), w, hn::Div(hn::Mul(first, all(correct1)), root));
        const auto updated = hn::NegMulAdd(all(lr), update, w);
        store(first, d, ms + i, lanes);
        store(second, d, vs + i, lanes);
        store(updated, d, ws + i, lanes);
        if (copies) store(updated, d, copies + i, lanes);
      });
    });
  });
}

void sgd(Tensor& master, Tensor& momentum, const Tensor& grad, const SgdStep& step, Tensor* model) {
  const double factor = factor_of(step.factor, step.grad_scale);
  if (!std::isfinite(factor)) return;
  on_weight_dtypes(master, model, [&]<class T, class M>() {
    M* copies = model ? model->data<M>() : nullptr;
    const LaneTag<T> d;
    T *ws = master.data<T>(), *buffers = momentum.data<T>();
    const T* gs = grad.data<T>();
    const T lr = static_cast<T>(step.lr), keep = static_cast<T>(step.momentum),
            decay = static_cast<T>(step.weight_decay), grad_scale = static_cast<T>(factor);
    parallel_for(cpu(master), master.numel(), kElementsPerChunk, [=](i64 begin, i64 end) {
      sweep(d, begin, end, [=](i64 i, auto lanes) {
        const auto w = load(d, ws + i, lanes);
        const auto g = hn::MulAdd(hn::Set(d, decay), w, hn::Mul(load(d, gs + i, lanes), hn::Set(d, grad_scale)));
        const auto buffer = hn::MulAdd(hn::Set(d, keep), load(d, buffers + i, lanes), g);
        const auto updated = hn::NegMulAdd(hn::Set(d, lr), buffer, w);
        store(buffer, d, buffers + i, lanes);
        store(updated, d, ws + i, lanes);
        if (copies) store(updated, d, copies + i, lanes);
      });
    });
  });
}

void momentum(Tensor& buffer, Tensor& grad, const MomentumStep& step) {
  const double factor = factor_of(step.factor);
  if (!std::isfinite(factor)) return;
  on_weight_dtypes(buffer, nullptr, [&]<class T, class>() {
    const LaneTag<T> d;
    T *buffers = buffer.data<T>(), *gs = grad.data<T>();
    const T keep = static_cast<T>(step.momentum), grad_scale = static_cast<T>(factor);
    parallel_for(cpu(buffer), buffer.numel(), kElementsPerChunk, [=, is_nesterov = step.nesterov](i64 begin, i64 end) {
      sweep(d, begin, end, [=](i64 i, auto lanes) {
        const auto g = hn::Mul(load(d, gs + i, lanes), hn::Set(d, grad_scale));
        const auto sum = hn::MulAdd(hn::Set(d, keep), load(d, buffers + i, lanes), g);
        store(sum, d, buffers + i, lanes);
        store(is_nesterov ? hn::MulAdd(hn::Set(d, keep), sum, g) : sum, d, gs + i, lanes);
      });
    });
  });
}

void apply_update(Tensor& master, const Tensor& direction, const ApplyUpdateStep& step, Tensor* model) {
  if (!std::isfinite(factor_of(step.factor))) return;
  on_weight_dtypes(master, model, [&]<class T, class M>() {
    M* copies = model ? model->data<M>() : nullptr;
    const LaneTag<T> d;
    T* ws = master.data<T>();
    const T* directions = direction.data<T>();
    const T lr = static_cast<T>(step.lr), decay = static_cast<T>(step.weight_decay);
    parallel_for(cpu(master), master.numel(), kElementsPerChunk, [=](i64 begin, i64 end) {
      sweep(d, begin, end, [=](i64 i, auto lanes) {
        const auto w = load(d, ws + i, lanes);
        const auto update = hn::MulAdd(hn::Set(d, decay), w, load(d, directions + i, lanes));
        const auto updated = hn::NegMulAdd(hn::Set(d, lr), update, w);
        store(updated, d, ws + i, lanes);
        if (copies) store(updated, d, copies + i, lanes);
      });
    });
  });
}

}  // namespace mcpp::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mcpp {

HWY_EXPORT(adamw);
HWY_EXPORT(sgd);
HWY_EXPORT(momentum);
HWY_EXPORT(apply_update);

template <>
void Kernels<DeviceType::Cpu>::adamw(Tensor& master, Tensor& m, Tensor& v, const Tensor& grad, const AdamWStep& step,
                                     Tensor* model) {
  HWY_DYNAMIC_DISPATCH(adamw)(master, m, v, grad, step, model);
}

template <>
void Kernels<DeviceType::Cpu>::sgd(Tensor& master, Tensor& momentum, const Tensor& grad, const SgdStep& step,
                                   Tensor* model) {
  HWY_DYNAMIC_DISPATCH(sgd)(master, momentum, grad, step, model);
}

template <>
void Kernels<DeviceType::Cpu>::momentum(Tensor& buffer, Tensor& grad, const MomentumStep& step) {
  HWY_DYNAMIC_DISPATCH(momentum)(buffer, grad, step);
}

template <>
void Kernels<DeviceType::Cpu>::apply_update(Tensor& master, const Tensor& direction, const ApplyUpdateStep& step,
                                            Tensor* model) {
  HWY_DYNAMIC_DISPATCH(apply_update)(master, direction, step, model);
}

}  // namespace mcpp
#endif  // HWY_ONCE
