#include "tensor/cuda/launch.cuh"
#include "tensor/ops/scan/channel_decays.h"

namespace mcpp {
namespace {

constexpr int kThreads = 128;

/// Team of one block for ChunkScan. Each function ends with a barrier.
template <class E, class W>
struct CudaTeam {
  static __device__ W exp(W x) { return ::exp(x); }
  static __device__ W softplus_of(W x) { return (x > 0 ? x : W{0}) + ::log1p(::exp(-fabs(x))); }
  static __device__ W sqrt(W x) { return ::sqrt(x); }
  static __device__ W widen(E x) { return mcpp::widen(x); }
  static __device__ void narrow(W x, E* to) { *to = mcpp::narrow<E>(x); }

  template <class F>
  __device__ void each(i64 rows, i64 columns, const F& f) const {
    for (i64 at = threadIdx.x; at < rows * columns; at += kThreads) f(at / columns, at % columns);
    __syncthreads();
  }
  /// Calls f(i, j) for the rows i of each column j in order.
  template <class F>
  __device__ void each_column(i64 rows, i64 columns, const F& f) const {
    each(1, columns, [&](i64, i64 j) {
      for (i64 i = 0; i < rows; ++i) f(i, j);
    });
  }
  template <class F>
  __device__ void serial(const F& f) const {
    if (threadIdx.x == 0) f();
    __syncthreads();
  }
  __device__ void load(const E* from, i64 stride, i64 rows, i64 columns, W* to, i64 ld, i64 padded_rows) const {
    each(padded_rows, ld,
         [=](i64 i, i64 j) { to[i * ld + j] = i < rows && j < columns ? mcpp::widen(from[i * stride + j]) : W{0}; });
  }
  __device__ void store(const W* from, i64 ld, i64 rows, i64 columns, E* to, i64 stride) const {
    each(rows, columns, [=](i64 i, i64 j) { to[i * stride + j] = mcpp::narrow<E>(from[i * ld + j]); });
  }
  template <bool kTransposedA>
  __device__ void multiply(const W* a, i64 lda, const W* b, i64 ldb, W* c, i64 ldc, i64 m, i64 n, i64 k,
                           bool accumulate) const {
    each(m, n, [=](i64 i, i64 j) {
      W sum = accumulate ? c[i * ldc + j] : W{0};
      for (i64 p = 0; p < k; ++p) sum += a[kTransposedA ? p * lda + i : i * lda + p] * b[p * ldb + j];
      c[i * ldc + j] = sum;
    });
  }
  __device__ void transpose(const W* from, i64 ld, i64 rows, i64 columns, W* to, i64 step) const {
    each(rows, columns, [=](i64 i, i64 j) { to[j * step + i] = from[i * ld + j]; });
  }
  __device__ void row_dots(const W* a, const W* b, i64 columns, i64 rows, W* dots) const {
    each(1, rows, [=](i64, i64 i) {
      W sum = 0;
      for (i64 j = 0; j < columns; ++j) sum += a[i * columns + j] * b[i * columns + j];
      dots[i] = sum;
    });
  }
  __device__ void decay(const W* sums, const W* low, i64 rows, W* to, i64 ld) const {
    each(rows, rows,
         [=](i64 i, i64 j) { to[i * ld + j] = i < j ? W{0} : ::exp(sums[i] - sums[j] + (low[i] - low[j])); });
  }

  __device__ void exps(const W* x, i64 count, W* to) const {
    each(1, count, [=](i64, i64 i) { to[i] = ::exp(x[i]); });
  }
  __device__ void softplus(const W* x, i64 count, W* to) const {
    each(1, count, [=](i64, i64 i) { to[i] = softplus_of(x[i]); });
  }
  __device__ void logistic(const W* x, i64 count, W* to) const {
    each(1, count, [=](i64, i64 i) { to[i] = W{1} / (W{1} + ::exp(-x[i])); });
  }

  // Decays of key channels. CpuTeam describes these functions.
  __device__ void channel_gates(const E* gates, i64 stride, i64 rows, i64 columns, const E* bias, W a, W* g, i64 ld,
                                i64 padded_rows) const {
    each(padded_rows, ld, [=](i64 i, i64 j) {
      W value = 0;
      if (i < rows && j < columns) {
        const W raw = mcpp::widen(gates[i * stride + j]) + mcpp::widen(bias[j]);
        value = -a * softplus_of(raw);
      }
      g[i * ld + j] = value;
    });
  }
  __device__ void channel_gates_backward(const E* gates, i64 stride, i64 rows, i64 columns, const E* bias, W a, W* dg,
                                         i64 ld, E* d_gates) const {
    each(rows, columns, [=](i64 i, i64 j) {
      const W raw = mcpp::widen(gates[i * stride + j]) + mcpp::widen(bias[j]);
      const W gradient = -a * dg[i * ld + j] / (1 + ::exp(-raw));
      dg[i * ld + j] = gradient;
      d_gates[i * stride + j] = mcpp::narrow<E>(gradient);
    });
  }
  __device__ void decayed_products(const W* q, const W* k, const W* decay, i64 ld, W* qk, W* kk, i64 ld_products,
                                   W*) const {
    each(kScanPadding, kScanPadding, [=](i64 i, i64 j) {
      if (i < j) return;
      W with_q = 0, with_k = 0;
      for (i64 c = 0; c < ld; ++c) {
        W key = k[j * ld + c];
        for (i64 t = j + 1; t <= i; ++t) key *= decay[t * ld + c];
        with_q += q[i * ld + c] * key;
        with_k += k[i * ld + c] * key;
      }
      qk[i * ld_products + j] = with_q;
      kk[i * ld_products + j] = with_k;
    });
  }
  /// Each thread computes some channels.
  __device__ void decayed_products_backward(const BlockProducts<W>& x, i64 ld, W* dq, W* dk, W* dg) const {
    each(1, ld, [&](i64, i64 c) {
      for (i64 j = 0; j < kScanPadding; ++j) {
        const W key = x.k[j * ld + c], diagonal = x.d_qk[j * x.ld + j];
        W d_key = diagonal * x.q[j * ld + c], decay = 1, terms[kScanPadding];
        dq[j * ld + c] += diagonal * key;
        for (i64 i = j + 1; i < kScanPadding; ++i) {
          const i64 at = i * ld + c;
          const W d_qk = x.d_qk[i * x.ld + j], d_kk = x.d_kk[i * x.ld + j];
          decay *= x.decay[at];
          dq[at] += d_qk * decay * key;
          dk[at] += d_kk * decay * key;
          const W d_decayed = d_qk * x.q[at] + d_kk * x.k[at];
          d_key += decay * d_decayed;
          terms[i] = d_decayed * decay * key;
        }
        dk[j * ld + c] += d_key;
        W sum = 0;
        for (i64 i = kScanPadding - 1; i > j; --i) {
          sum += terms[i];
          dg[i * ld + c] += sum;
        }
      }
    });
  }
};

template <class E, class W>
using Scan = ChunkScan<CudaTeam<E, W>, E, W>;

/// One block per sample and group.
template <class E, class W>
__global__ void __launch_bounds__(kThreads) scan_forward(ScanOperands<E, W> operands, W* memory, i64 size) {
  const CudaTeam<E, W> team;
  Scan<E, W>(team, operands, blockIdx.x, memory + blockIdx.x * size).forward();
}
template <class E, class W>
__global__ void __launch_bounds__(kThreads) scan_backward(ScanOperands<E, W> operands, W* memory, i64 size) {
  const CudaTeam<E, W> team;
  Scan<E, W>(team, operands, blockIdx.x, memory + blockIdx.x * size).backward();
}

template <class T>
auto scan_operands(const ScanShape& shape, const Tensor& x, const Tensor& p, const ScanParams& params,
                   const ScanPositions& positions) {
  ScanOperands<Element<T>, AccumulateType<T>> operands;
  operands.shape = shape;
  operands.seq = p.dim(0), operands.batch = p.dim(1);
  operands.x = elements<T>(x), operands.p = elements<T>(p);
  operands.a_log = elements<T>(params.a_log), operands.dt_bias = elements<T>(params.dt_bias);
  if (params.skip.defined()) operands.skip = elements<T>(params.skip);
  if (positions.starts.defined()) operands.starts = positions.starts.data<i32>();
  operands.first = positions.first;
  return operands;
}

template <class E, class W>
void launch_scan(void (*kernel)(ScanOperands<E, W>, W*, i64), const ScanOperands<E, W>& operands, const Tensor& p) {
  const i64 tasks = operands.batch * operands.shape.groups, size = Scan<E, W>::workspace(operands.shape);
  if (tasks == 0) return;
  const Tensor memory = Tensor::empty({tasks, size}, DTypeOf<W>::value, p.device(), MemoryClass::Workspace);
  launch(kernel, static_cast<unsigned>(tasks), kThreads, 0, cuda(p).stream(), operands, memory.data<W>(), size);
}

}  // namespace

template <>
void ScanKernels<DeviceType::Cuda>::gated_scan(const ScanShape& shape, const Tensor& x, const Tensor& p,
                                               const ScanParams& params, const ScanPositions& positions, Tensor* state,
                                               Tensor& y) {
  on_float(p.dtype(), [&]<class T>() {
    using W = AccumulateType<T>;
    auto operands = scan_operands<T>(shape, x, p, params, positions);
    operands.y = elements<T>(y);
    if (state) operands.state = state->data<W>();
    launch_scan(scan_forward<Element<T>, W>, operands, p);
  });
}

template <>
void ScanKernels<DeviceType::Cuda>::gated_scan_backward(const ScanShape& shape, const Tensor& dy, const Tensor& x,
                                                        const Tensor& p, const ScanParams& params,
                                                        const ScanPositions& positions, Tensor& states, Tensor& dx,
                                                        Tensor& dp, ScanParamGradients& gradients) {
  on_float(p.dtype(), [&]<class T>() {
    using W = AccumulateType<T>;
    auto operands = scan_operands<T>(shape, x, p, params, positions);
    operands.dy = elements<T>(dy), operands.dx = elements<T>(dx), operands.dp = elements<T>(dp);
    operands.states = states.data<W>();
    operands.d_a_log = gradients.a_log.data<W>(), operands.d_dt_bias = gradients.dt_bias.data<W>();
    if (gradients.skip.defined()) operands.d_skip = gradients.skip.data<W>();
    launch_scan(scan_backward<Element<T>, W>, operands, p);
  });
}

}  // namespace mcpp
