// Largest scores of attention on the GPU: a tiled pass over queries and keys, as in the forward pass without values.
#include "tensor/cuda/attention/attention_kernels.cuh"
#include "tensor/ops/attention_logits.h"

namespace mcpp {
namespace attention {
namespace {

/// Writes the largest score of each query to p.lse [batch, heads, queries].
template <int kDim, class E, class W>
__global__ void __launch_bounds__(kThreads) row_logits(const __grid_constant__ Problem<E, W> p) {
  constexpr int kRows = kRowsOf<W>;
  W* q = dynamic_shared<W>();
  W* keys = q + kOwn<W> * kStride<kDim>;
  const BlockTile at(p.heads, p.queries, kOwn<W>);
  const i64 kv_head = at.head / p.group(), first_of_warp = at.first + threadIdx.x / kWarp * kRows;
  load_tile<kDim>(p.q, at.b, at.head, at.first, p.queries, kOwn<W>, q);
  W largest[kRows];
  SeenKeys seen[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    largest[i] = minus_infinity<W>();
    seen[i] = p.seen_keys(at.b, first_of_warp + i);
  }
  const SeenKeys all = keys_of_tile(p, at.b, at.first, kOwn<W>);
  for (i64 first = all.begin; first < all.end; first += kWarp) {
    W scores[kRows];
    __syncthreads();
    load_tile<kDim>(p.k, at.b, kv_head, first, p.keys, kWarp, keys);
    __syncthreads();
    dot_rows<kDim>(q, keys, p.head_dim, scores);
    const i64 key = first + threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kRows; ++i)
      if (seen[i].has(key)) largest[i] = max(largest[i], p.score(scores[i]));
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const W of_row = warp_max(largest[i]);
    if (threadIdx.x % kWarp == 0 && first_of_warp + i < p.queries)
      p.lse[p.lse_row(at.b, at.head) + first_of_warp + i] = of_row;
  }
}

/// Computes largest[head] = max(largest[head], rows [batch, heads, queries]), with one warp per head.
template <class W>
__global__ void head_logits(const W* rows, i64 batch, i64 heads, i64 queries, W* largest) {
  const i64 head = blockIdx.x;
  W of_lane = largest[head];
  for (i64 b = 0; b < batch; ++b) {
    for (i64 q = threadIdx.x; q < queries; q += kWarp) of_lane = max(of_lane, rows[(b * heads + head) * queries + q]);
  }
  of_lane = warp_max(of_lane);
  if (threadIdx.x == 0) largest[head] = of_lane;
}

template <int kDim, class E, class W>
void launch_logits(const Problem<E, W>& p, Tensor& largest, CudaDevice& device) {
  const i64 blocks = (p.queries + kOwn<W> - 1) / kOwn<W> * p.heads * p.batch;
  if (blocks == 0) return;
  const int bytes = (kOwn<W> + kWarp) * kStride<kDim> * static_cast<int>(sizeof(W));
  const auto kernel = row_logits<kDim, E, W>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "max_attention_logits");
  launch(kernel, static_cast<unsigned>(blocks), kThreads, static_cast<std::size_t>(bytes), device.stream(), p);
  launch(head_logits<W>, static_cast<unsigned>(p.heads), kWarp, 0, device.stream(), static_cast<const W*>(p.lse),
         p.batch, p.heads, p.queries, largest.data<W>());
}

}  // namespace
}  // namespace attention

template <>
void AttentionLogitKernels<DeviceType::Cuda>::max_attention_logits(const QkvHeads& x, const AttentionOptions& options,
                                                                   Tensor& largest) {
  CudaDevice& device = cuda(largest);
  on_float(x.q.base.dtype(), [&]<class T>() {
    using W = AccumulateType<T>;
    const AttentionResult rows{
        .out = {},
        .lse = Tensor::empty({x.q.batch, x.q.heads, x.q.seq}, largest.dtype(), device, MemoryClass::Workspace)};
    attention::Problem<Element<T>, W> p;
    p.template read<T>(x, options, rows);
    p.scale = static_cast<W>(options.softmax_scale);
    p.soft_cap = static_cast<W>(options.soft_cap);
    if (x.q.head_dim <= 64) return attention::launch_logits<64>(p, largest, device);
    if (x.q.head_dim <= 128) return attention::launch_logits<128>(p, largest, device);
    MCPP_CHECK(x.q.head_dim <= 256, "max_attention_logits: head_dim is 1 to 256, not ", x.q.head_dim);
    attention::launch_logits<256>(p, largest, device);
  });
}

}  // namespace mcpp
