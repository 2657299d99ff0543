#include "tensor/cuda/launch.cuh"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace {

constexpr int kThreads = 256;

/// Heads view for kernels, without the tensor.
template <class E>
struct HeadView {
  E* base;
  i64 group_size, head_dim, seq_stride, batch_stride, group_stride;

  __device__ E* channel(i64 s, i64 b, i64 i) const {
    const i64 head = i / head_dim;
    return base + s * seq_stride + b * batch_stride + head / group_size * group_stride + head % group_size * head_dim +
           i % head_dim;
  }
};

template <class T>
HeadView<Element<T>> view_of(const Heads& x) {
  return {elements<T>(x.base) + x.offset, x.group_size, x.head_dim, x.seq_stride, x.batch_stride, x.group_stride};
}

/// One block per row of the sequence and the batch.
template <class From, class To>
__global__ void __launch_bounds__(kThreads) copy_rows(HeadView<From> from, HeadView<To> to, i64 batch, i64 channels) {
  const i64 s = blockIdx.x / batch, b = blockIdx.x % batch;
  for (i64 i = threadIdx.x; i < channels; i += blockDim.x)
    *to.channel(s, b, i) = narrow<To>(widen(*from.channel(s, b, i)));
}

}  // namespace

template <>
void Kernels<DeviceType::Cuda>::copy_heads(const Heads& from, Heads& to) {
  const i64 rows = to.seq * to.batch, channels = to.heads * to.head_dim;
  if (rows == 0 || channels == 0) return;
  const CudaDevice& device = cuda(to.base);
  on_float(from.base.dtype(), [&]<class From>() {
    on_float(to.base.dtype(), [&]<class To>() {
      launch(copy_rows<Element<From>, Element<To>>, static_cast<unsigned>(rows), kThreads, 0, device.stream(),
             view_of<From>(from), view_of<To>(to), to.batch, channels);
    });
  });
}

}  // namespace mcpp
