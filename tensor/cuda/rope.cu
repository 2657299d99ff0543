#include <algorithm>

#include "tensor/cuda/launch.cuh"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

constexpr int kThreads = 256;

/// Heads and the table for kernels, without the tensors.
template <class E, class W>
struct Rotation {
  E* base;
  const W *cos, *sin;
  W sign;
  PositionRanges positions;
  const i32* starts;  ///< starts of documents, [s, b], or null
  i64 batch, seq_stride, batch_stride, group_stride;
  int heads, group_size, head_dim, half;

  __device__ E* channels(i64 s, i64 b, int head) const {
    return base + s * seq_stride + b * batch_stride + head / group_size * group_stride + head % group_size * head_dim;
  }
};

template <int N, class W>
__device__ __forceinline__ void load_wide(const W* from, W (&to)[N]) {
  constexpr int kStep = N < Pack<W>::kCount ? N : Pack<W>::kCount;
#pragma unroll
  for (int k = 0; k < N; k += kStep) {
    const Pack<W, kStep> part = load_pack<kStep>(from + k);
#pragma unroll
    for (int j = 0; j < kStep; ++j) to[k + j] = part.values[j];
  }
}

/// Computes (lower, upper) = (lower cos - upper sin, upper cos + lower sin) over N channels; sin times `sign`.
template <int N, class E, class W>
__device__ __forceinline__ void rotate(E* lower, E* upper, const W* cos, const W* sin, W sign) {
  Pack<E, N> a = load_pack<N>(lower), b = load_pack<N>(upper);
  W cosines[N], sines[N];
  load_wide<N>(cos, cosines);
  load_wide<N>(sin, sines);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const W x = widen(a.values[k]), y = widen(b.values[k]), c = cosines[k], s = sines[k] * sign;
    a.values[k] = narrow<E>(fma(-y, s, x * c));
    b.values[k] = narrow<E>(fma(x, s, y * c));
  }
  store_pack(lower, a);
  store_pack(upper, b);
}

/// One block per row of the sequence and the batch; each thread processes N channels of a head at a time.
template <int N, class E, class W>
__global__ void __launch_bounds__(kThreads) rotate_heads(Rotation<E, W> r) {
  const i64 s = blockIdx.x / r.batch, b = blockIdx.x % r.batch;
  const int per_head = r.half / N;
  const i64 table_row = (r.positions.at(s) - (r.starts ? r.starts[blockIdx.x] : 0)) * r.half;
  for (int item = static_cast<int>(threadIdx.x); item < r.heads * per_head; item += static_cast<int>(blockDim.x)) {
    const int head = item / per_head, i = item % per_head * N;
    E* lower = r.channels(s, b, head) + i;
    rotate<N>(lower, lower + r.half, r.cos + table_row + i, r.sin + table_row + i, r.sign);
  }
}

template <class E, class W>
bool has_packed_heads(const Rotation<E, W>& r) {
  constexpr i64 kCount = Pack<E>::kCount;
  const auto fits = [](i64 n) { return n % kCount == 0; };
  return is_packable(kCount, r.base, r.cos, r.sin) && fits(r.half) && fits(r.head_dim) && fits(r.seq_stride) &&
         fits(r.batch_stride) && fits(r.group_stride);
}

template <int N, class E, class W>
void launch_rotate(const Rotation<E, W>& r, i64 rows, const CudaDevice& device) {
  const int items = r.heads * (r.half / N);
  const int threads = std::min(kThreads, (items + kWarp - 1) / kWarp * kWarp);
  launch(rotate_heads<N, E, W>, static_cast<unsigned>(rows), threads, 0, device.stream(), r);
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::rope(Heads& x, const Tensor& cos, const Tensor& sin, const Positions& positions,
                                     bool is_inverse) {
  const i64 rows = x.seq * x.batch, half = cos.dim(1);
  if (rows == 0 || x.heads == 0 || half == 0) return;
  const CudaDevice& device = cuda(x.base);
  on_float(x.base.dtype(), [&]<class T>() {
    using W = AccumulateType<T>;
    const Rotation<Element<T>, W> r{.base = elements<T>(x.base) + x.offset,
                                    .cos = cos.data<W>(),
                                    .sin = sin.data<W>(),
                                    .sign = static_cast<W>(is_inverse ? -1 : 1),
                                    .positions = positions.ranges,
                                    .starts = positions.starts_or_null(),
                                    .batch = x.batch,
                                    .seq_stride = x.seq_stride,
                                    .batch_stride = x.batch_stride,
                                    .group_stride = x.group_stride,
                                    .heads = static_cast<int>(x.heads),
                                    .group_size = static_cast<int>(x.group_size),
                                    .head_dim = static_cast<int>(x.head_dim),
                                    .half = static_cast<int>(half)};
    if (has_packed_heads(r))
      launch_rotate<Pack<Element<T>>::kCount>(r, rows, device);
    else
      launch_rotate<1>(r, rows, device);
  });
}

}  // namespace mcpp
