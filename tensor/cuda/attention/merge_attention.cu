#include "tensor/cuda/attention/attention_tile.cuh"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace attention {
namespace {

/// One warp per row of `from` and `to` [seq, batch, heads, dim]; lse are [batch, heads, seq].
template <class E, class S, class W>
__global__ void __launch_bounds__(kThreads)
    merge(const E* from, const W* others, S* to, W* owns, i64 seq, i64 batch, i64 heads, i64 dim) {
  const i64 rows = seq * batch * heads, step = i64{gridDim.x} * kWarps;
  for (i64 row = blockIdx.x * i64{kWarps} + threadIdx.x / kWarp; row < rows; row += step) {
    const i64 head = row % heads, b = row / heads % batch, at = (b * heads + head) * seq + row / heads / batch;
    const W before = owns[at], part = others[at];
    if (part == -static_cast<W>(INFINITY)) continue;
    const W largest = before < part ? part : before;
    const W own = exp(before - largest), other = exp(part - largest), sum = own + other;
    __syncwarp();
    if (threadIdx.x % kWarp == 0) owns[at] = largest + log(sum);
    for (i64 d = row * dim + threadIdx.x % kWarp; d < (row + 1) * dim; d += kWarp)
      to[d] = narrow<S>(own / sum * widen(to[d]) + other / sum * widen(from[d]));
  }
}

template <class T, class S>
void launch_merge(const AttentionResult& part, AttentionResult& total) {
  using W = AccumulateType<T>;
  const CudaDevice& device = cuda(part.out);
  const i64 heads = part.lse.dim(1), seq = part.out.dim(0), batch = part.out.dim(1), rows = seq * batch * heads;
  if (rows == 0) return;
  launch(merge<Element<T>, Element<S>, W>, grid_for(rows * kWarp, kThreads, device), kThreads, 0, device.stream(),
         elements<T>(part.out), part.lse.data<W>(), elements<S>(total.out), total.lse.data<W>(), seq, batch, heads,
         part.out.dim(2) / heads);
}

}  // namespace
}  // namespace attention

template <>
void Kernels<DeviceType::Cuda>::merge_attention(const AttentionResult& part, AttentionResult& total) {
  on_float(part.out.dtype(), [&]<class T>() {
    if (total.out.dtype() == part.out.dtype())
      attention::launch_merge<T, T>(part, total);
    else
      attention::launch_merge<T, AccumulateType<T>>(part, total);
  });
}

}  // namespace mcpp
