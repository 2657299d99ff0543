#include <limits>

#include "tensor/cuda/attention/attention.h"
#include "tensor/cuda/attention/attention_kernels.cuh"
#include "tensor/transfer.h"

namespace mcpp {
namespace attention {
namespace {

/// Returns dropout's sample indices on the GPU; undefined without dropout.
Tensor device_samples(const Dropout& dropout, CudaDevice& device) {
  if (dropout.p == 0) return {};
  if (dropout.sample_indices.defined()) return dropout.sample_indices;
  const i64 count = static_cast<i64>(dropout.samples.size());
  Tensor samples = Tensor::empty({count}, DType::I64, device, MemoryClass::Workspace);
  write_values(dropout.samples, samples);
  return samples;
}

template <class T>
Problem<Element<T>, AccumulateType<T>> make_problem(const QkvHeads& x, const AttentionResult& y,
                                                    const AttentionOptions& options, const Tensor& samples) {
  using W = AccumulateType<T>;
  Problem<Element<T>, W> p;
  p.template read<T>(x, options, y);
  p.scale = static_cast<W>(options.softmax_scale);
  p.soft_cap = static_cast<W>(options.soft_cap);
  if (options.dropout.p > 0) {
    p.samples = samples.data<i64>();
    p.dropout_key = options.dropout.key;
    p.first_head = options.dropout.first_column;
    p.threshold = dropout_threshold(options.dropout.p);
    p.keep_scale = static_cast<W>(dropout_scale(options.dropout.p));
  }
  return p;
}

/// Launches `kernel` with one block per tile of `rows` rows of `heads` heads, and `bytes` of shared memory.
template <class P>
void launch_tiles(void (*kernel)(P), const char* name, const P& p, i64 heads, i64 rows, i64 own, i64 bytes,
                  CudaDevice& device) {
  const i64 blocks = (rows + own - 1) / own * heads * p.batch;
  if (blocks == 0) return;
  MCPP_CHECK(blocks <= std::numeric_limits<i32>::max(), name, ": too many blocks, ", blocks);
  const i64 max_bytes = static_cast<i64>(device.properties().sharedMemPerBlockOptin);
  MCPP_CHECK(bytes <= max_bytes, name, ": head_dim ", p.head_dim, " needs ", bytes,
             " bytes of shared memory, the GPU has ", max_bytes);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)), name);
  launch(kernel, static_cast<unsigned>(blocks), kThreads, static_cast<std::size_t>(bytes), device.stream(), p);
}

template <int kDim, class E, class W>
void launch_forward(const Problem<E, W>& p, CudaDevice& device) {
  const i64 bytes = i64{kOwn<W> + kWarp} * kStride<kDim> * i64{sizeof(W)};
  launch_tiles(forward<kDim, E, W>, "attention", p, p.heads, p.queries, kOwn<W>, bytes, device);
}

template <int kDim, class E, class W>
void launch_backward(const Problem<E, W>& p, CudaDevice& device) {
  const i64 rows = p.batch * p.heads * p.queries;
  launch(sum_products<E, W>, grid_for(rows * kWarp, kThreads, device), kThreads, 0, device.stream(), p);
  const i64 bytes = i64{2 * (kOwn<W> + kWarp)} * kStride<kDim> * i64{sizeof(W)};
  launch_tiles(backward_queries<kDim, E, W>, "attention_backward", p, p.heads, p.queries, kOwn<W>, bytes, device);
  launch_tiles(backward_keys<kDim, E, W>, "attention_backward", p, p.kv_heads, p.keys, kOwn<W>, bytes, device);
}

/// Calls f.template operator()<kDim>() with the padded number of channels of tiles; `head_dim` is the larger of the
/// widths of keys and values.
template <class F>
void with_padded_dim(i64 head_dim, F&& f) {
  MCPP_CHECK(head_dim > 0 && head_dim <= 256, "attention: head_dim is 1 to 256, not ", head_dim);
  if (head_dim <= 64) return f.template operator()<64>();
  if (head_dim <= 128) return f.template operator()<128>();
  f.template operator()<256>();
}

}  // namespace
}  // namespace attention

void TiledAttention::forward(const QkvHeads& x, const AttentionOptions& options, AttentionResult& y) {
  CudaDevice& device = cuda(y.out);
  const Tensor samples = attention::device_samples(options.dropout, device);
  on_float(x.q.base.dtype(), [&]<class T>() {
    auto p = attention::make_problem<T>(x, y, options, samples);
    p.template read_forward<T>(y);
    attention::with_padded_dim(std::max(x.q.head_dim, x.v.head_dim),
                               [&]<int kDim>() { attention::launch_forward<kDim>(p, device); });
  });
}

void TiledAttention::backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                              const AttentionOptions& options, QkvHeads& dx) {
  CudaDevice& device = cuda(dout);
  const Tensor samples = attention::device_samples(options.dropout, device);
  const Tensor delta = Tensor::empty(y.lse.shape(), y.lse.dtype(), device, MemoryClass::Workspace);
  on_float(x.q.base.dtype(), [&]<class T>() {
    auto p = attention::make_problem<T>(x, y, options, samples);
    p.template read_backward<T>(dout, y, dx);
    p.delta = delta.data<AccumulateType<T>>();
    attention::with_padded_dim(std::max(x.q.head_dim, x.v.head_dim),
                               [&]<int kDim>() { attention::launch_backward<kDim>(p, device); });
  });
}

}  // namespace mcpp
