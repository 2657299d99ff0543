#include "tensor/cuda/attention/attention_tile.cuh"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace attention {
namespace {

template <class E>
__device__ AccumulateType<E> sink_of(const E* sinks, i64 head) {
  return sinks ? widen(sinks[head]) : AccumulateType<E>{0};
}

/// One warp per row of `out` [seq, batch, heads, dim]; lse is [batch, heads, seq].
template <class E, class W>
__global__ void __launch_bounds__(kThreads)
    add_sinks(const E* sinks, E* out, W* lse, i64 seq, i64 batch, i64 heads, i64 dim) {
  const i64 rows = seq * batch * heads, step = i64{gridDim.x} * kWarps;
  for (i64 row = blockIdx.x * i64{kWarps} + threadIdx.x / kWarp; row < rows; row += step) {
    const i64 head = row % heads, b = row / heads % batch, at = (b * heads + head) * seq + row / heads / batch;
    const W before = lse[at], sink = sink_of(sinks, head), largest = before < sink ? sink : before;
    const W own = exp(before - largest), sum = own + exp(sink - largest);
    __syncwarp();
    if (threadIdx.x % kWarp == 0) lse[at] = largest + log(sum);
    for (i64 d = row * dim + threadIdx.x % kWarp; d < (row + 1) * dim; d += kWarp)
      out[d] = narrow<E>(own / sum * widen(out[d]));
  }
}

/// One thread per element of `dots` [seq, batch, heads].
template <class E, class W>
__global__ void __launch_bounds__(kThreads)
    scale_dots(const E* sinks, const W* lse, W* dots, i64 seq, i64 batch, i64 heads) {
  const i64 count = seq * batch * heads, step = i64{gridDim.x} * kThreads;
  for (i64 i = blockIdx.x * i64{kThreads} + threadIdx.x; i < count; i += step) {
    const i64 head = i % heads, row = i / heads;
    dots[i] *= -exp(sink_of(sinks, head) - lse[(row % batch * heads + head) * seq + row / batch]);
  }
}

__global__ void __launch_bounds__(kThreads)
    write_chunk_starts(PositionRanges positions, i64 chunk, const i32* documents, i32* starts, i64 count, i64 batch) {
  const i64 step = i64{gridDim.x} * kThreads;
  for (i64 i = blockIdx.x * i64{kThreads} + threadIdx.x; i < count; i += step) {
    const i64 begin = documents ? documents[i] : 0;
    starts[i] = static_cast<i32>(begin + (positions.at(i / batch) - begin) / chunk * chunk);
  }
}

}  // namespace
}  // namespace attention

template <>
void Kernels<DeviceType::Cuda>::attention_sink(const Tensor* sinks, AttentionResult& y) {
  using namespace attention;
  const CudaDevice& device = cuda(y.out);
  const i64 heads = y.lse.dim(1), seq = y.out.dim(0), batch = y.out.dim(1), rows = seq * batch * heads;
  if (rows == 0) return;
  on_float(y.out.dtype(), [&]<class T>() {
    using W = AccumulateType<T>;
    launch(add_sinks<Element<T>, W>, grid_for(rows * kWarp, kThreads, device), kThreads, 0, device.stream(),
           sinks ? elements<T>(*sinks) : nullptr, elements<T>(y.out), y.lse.data<W>(), seq, batch, heads,
           y.out.dim(2) / heads);
  });
}

template <>
void Kernels<DeviceType::Cuda>::scale_by_sinks(const Tensor& sinks, const Tensor& lse, Tensor& dots) {
  using namespace attention;
  if (dots.numel() == 0) return;
  const CudaDevice& device = cuda(dots);
  on_float(sinks.dtype(), [&]<class T>() {
    using W = AccumulateType<T>;
    launch(scale_dots<Element<T>, W>, grid_for(dots.numel(), kThreads, device), kThreads, 0, device.stream(),
           elements<T>(sinks), lse.data<W>(), dots.data<W>(), dots.dim(0), dots.dim(1), dots.dim(2));
  });
}

template <>
void Kernels<DeviceType::Cuda>::chunk_starts(const PositionRanges& positions, i64 chunk, const Tensor* documents,
                                             Tensor& starts) {
  using namespace attention;
  if (starts.numel() == 0) return;
  const CudaDevice& device = cuda(starts);
  launch(write_chunk_starts, grid_for(starts.numel(), kThreads, device), kThreads, 0, device.stream(), positions, chunk,
         static_cast<const i32*>(documents ? documents->data<i32>() : nullptr), starts.data<i32>(), starts.numel(),
         starts.dim(1));
}

}  // namespace mcpp
