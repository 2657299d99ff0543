#include <cmath>

#include "tensor/cuda/launch.cuh"
#include "tensor/ops/kernels.h"
#include "tensor/ops/weight_update.h"

namespace mcpp {
namespace {

constexpr int kThreads = 256;

/// AdamWStep in the arithmetic type. Each multiply-add below rounds as it does on the CPU.
template <class T>
struct AdamW {
  T beta1, rest1, beta2, rest2, correct1, correct2, eps, decay, lr, grad_scale = 0;

  explicit AdamW(const AdamWStep& step)
      : beta1(static_cast<T>(step.beta1)),
        rest1(static_cast<T>(1 - step.beta1)),
        beta2(static_cast<T>(step.beta2)),
        rest2(static_cast<T>(1 - step.beta2)),
        correct1(static_cast<T>(1 / (1 - std::pow(step.beta1, static_cast<double>(step.step))))),
        correct2(static_cast<T>(1 / (1 - std::pow(step.beta2, static_cast<double>(step.step))))),
        eps(static_cast<T>(step.eps)),
        decay(static_cast<T>(step.weight_decay)),
        lr(static_cast<T>(step.lr)) {}

  __device__ void operator()(T& w, T& m, T& v, T grad) const {
    const T g = grad * grad_scale;
    m = fma(rest1, g, beta1 * m);
    v = fma(rest2 * g, g, beta2 * v);
    const T root = sqrt(v * correct2) + eps;
    const T update = fma(decay, w, m * correct1 / root);
    w = fma(-lr, update, w);
  }
};

template <class T>
struct Sgd {
  T lr, keep, decay, grad_scale = 0;

  explicit Sgd(const SgdStep& step)
      : lr(static_cast<T>(step.lr)), keep(static_cast<T>(step.momentum)), decay(static_cast<T>(step.weight_decay)) {}

  __device__ void operator()(T& w, T& buffer, T grad) const {
    const T g = fma(decay, w, grad * grad_scale);
    buffer = fma(keep, buffer, g);
    w = fma(-lr, buffer, w);
  }
};

template <class T>
struct Momentum {
  T keep;
  bool nesterov;
  T grad_scale = 0;

  explicit Momentum(const MomentumStep& step) : keep(static_cast<T>(step.momentum)), nesterov(step.nesterov) {}

  __device__ void operator()(T& buffer, T& grad) const {
    const T g = grad * grad_scale;
    buffer = fma(keep, buffer, g);
    grad = nesterov ? fma(keep, buffer, g) : buffer;
  }
};

template <class T>
struct Descent {
  T lr, decay;
  T grad_scale = 0;  // unused

  explicit Descent(const ApplyUpdateStep& step)
      : lr(static_cast<T>(step.lr)), decay(static_cast<T>(step.weight_decay)) {}

  __device__ void operator()(T& w, T direction) const { w = fma(-lr, fma(decay, w, direction), w); }
};

/// Vectors of one update; `model` may be null.
template <class T, class M>
struct AdamWVectors {
  T *w, *m, *v;
  const T* grad;
  M* model;

  template <int N>
  bool is_aligned() const {
    return is_pack_aligned<N>(w) && is_pack_aligned<N>(m) && is_pack_aligned<N>(v) && is_pack_aligned<N>(grad) &&
           is_pack_aligned<N>(model);
  }
  template <int N>
  __device__ __forceinline__ void update(i64 i, const AdamW<T>& f) const {
    Pack<T, N> ws = load_pack<N>(w + i), ms = load_pack<N>(m + i), vs = load_pack<N>(v + i);
    const Pack<T, N> gs = load_pack<N>(grad + i);
    Pack<M, N> copies;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      f(ws.values[k], ms.values[k], vs.values[k], gs.values[k]);
      copies.values[k] = narrow<M>(ws.values[k]);
    }
    store_pack(m + i, ms);
    store_pack(v + i, vs);
    store_pack(w + i, ws);
    if (model) store_pack(model + i, copies);
  }
};

template <class T, class M>
struct SgdVectors {
  T *w, *buffer;
  const T* grad;
  M* model;

  template <int N>
  bool is_aligned() const {
    return is_pack_aligned<N>(w) && is_pack_aligned<N>(buffer) && is_pack_aligned<N>(grad) && is_pack_aligned<N>(model);
  }
  template <int N>
  __device__ __forceinline__ void update(i64 i, const Sgd<T>& f) const {
    Pack<T, N> ws = load_pack<N>(w + i), buffers = load_pack<N>(buffer + i);
    const Pack<T, N> gs = load_pack<N>(grad + i);
    Pack<M, N> copies;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      f(ws.values[k], buffers.values[k], gs.values[k]);
      copies.values[k] = narrow<M>(ws.values[k]);
    }
    store_pack(buffer + i, buffers);
    store_pack(w + i, ws);
    if (model) store_pack(model + i, copies);
  }
};

template <class T>
struct MomentumVectors {
  T *buffer, *grad;

  template <int N>
  bool is_aligned() const {
    return is_pack_aligned<N>(buffer) && is_pack_aligned<N>(grad);
  }
  template <int N>
  __device__ __forceinline__ void update(i64 i, const Momentum<T>& f) const {
    Pack<T, N> buffers = load_pack<N>(buffer + i), gs = load_pack<N>(grad + i);
#pragma unroll
    for (int k = 0; k < N; ++k) f(buffers.values[k], gs.values[k]);
    store_pack(buffer + i, buffers);
    store_pack(grad + i, gs);
  }
};

template <class T, class M>
struct DescentVectors {
  T* w;
  const T* direction;
  M* model;

  template <int N>
  bool is_aligned() const {
    return is_pack_aligned<N>(w) && is_pack_aligned<N>(direction) && is_pack_aligned<N>(model);
  }
  template <int N>
  __device__ __forceinline__ void update(i64 i, const Descent<T>& f) const {
    Pack<T, N> ws = load_pack<N>(w + i);
    const Pack<T, N> directions = load_pack<N>(direction + i);
    Pack<M, N> copies;
#pragma unroll
    for (int k = 0; k < N; ++k) {
      f(ws.values[k], directions.values[k]);
      copies.values[k] = narrow<M>(ws.values[k]);
    }
    store_pack(w + i, ws);
    if (model) store_pack(model + i, copies);
  }
};

/// Processes N elements at a time for `packs` packs, then single elements. The gradient is multiplied by `scale`, and
/// by `factor` unless that is null; if the product is not finite, nothing is updated.
template <int N, class Vectors, class F>
__global__ void __launch_bounds__(kThreads)
    update_weights(Vectors vectors, i64 n, i64 packs, F f, double scale, const double* factor) {
  if (factor) scale *= *factor;
  if (!isfinite(scale)) return;
  f.grad_scale = static_cast<decltype(f.grad_scale)>(scale);
  const i64 first = blockIdx.x * i64{blockDim.x} + threadIdx.x, step = i64{gridDim.x} * blockDim.x;
  for (i64 p = first; p < packs; p += step) vectors.template update<N>(p * N, f);
  for (i64 i = packs * N + first; i < n; i += step) vectors.template update<1>(i, f);
}

template <class T, class Vectors, class F>
void launch_update(const Tensor& master, const Vectors& vectors, const F& f, const Tensor& factor,
                   double grad_scale = 1) {
  constexpr int kCount = Pack<T>::kCount;
  const i64 n = master.numel();
  if (n == 0) return;
  CudaDevice& device = cuda(master);
  const i64 packs = vectors.template is_aligned<kCount>() ? n / kCount : 0;
  const double* multiplier = factor.defined() ? factor.data<double>() : nullptr;
  launch(update_weights<kCount, Vectors, F>, grid_for(packs > 0 ? packs : n, kThreads, device), kThreads, 0,
         device.stream(), vectors, n, packs, f, grad_scale, multiplier);
}

/// Returns the model's weights; null if there are only master weights.
template <class M>
Element<M>* copies(const Tensor* model) {
  return model ? elements<M>(*model) : nullptr;
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::adamw(Tensor& master, Tensor& m, Tensor& v, const Tensor& grad, const AdamWStep& step,
                                      Tensor* model) {
  on_weight_dtypes(master, model, [&]<class T, class M>() {
    const AdamWVectors<T, Element<M>> vectors{master.data<T>(), m.data<T>(), v.data<T>(), grad.data<T>(),
                                              copies<M>(model)};
    launch_update<T>(master, vectors, AdamW<T>(step), step.factor, step.grad_scale);
  });
}

template <>
void Kernels<DeviceType::Cuda>::sgd(Tensor& master, Tensor& momentum, const Tensor& grad, const SgdStep& step,
                                    Tensor* model) {
  on_weight_dtypes(master, model, [&]<class T, class M>() {
    const SgdVectors<T, Element<M>> vectors{master.data<T>(), momentum.data<T>(), grad.data<T>(), copies<M>(model)};
    launch_update<T>(master, vectors, Sgd<T>(step), step.factor, step.grad_scale);
  });
}

template <>
void Kernels<DeviceType::Cuda>::momentum(Tensor& buffer, Tensor& grad, const MomentumStep& step) {
  on_weight_dtypes(buffer, nullptr, [&]<class T, class>() {
    const MomentumVectors<T> vectors{buffer.data<T>(), grad.data<T>()};
    launch_update<T>(buffer, vectors, Momentum<T>(step), step.factor);
  });
}

template <>
void Kernels<DeviceType::Cuda>::apply_update(Tensor& master, const Tensor& direction, const ApplyUpdateStep& step,
                                             Tensor* model) {
  on_weight_dtypes(master, model, [&]<class T, class M>() {
    const DescentVectors<T, Element<M>> vectors{master.data<T>(), direction.data<T>(), copies<M>(model)};
    launch_update<T>(master, vectors, Descent<T>(step), step.factor);
  });
}

}  // namespace mcpp
