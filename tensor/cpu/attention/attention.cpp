// Attention on the CPU: splits the work into items independent of the number of threads, and provides each thread's
// scratch memory. The kernels are in attention_forward.cpp, attention_backward.cpp and attention_decode.cpp.
#include <omp.h>

#include <limits>
#include <vector>

#include "base/integer_math.h"
#include "tensor/cpu/attention/attention_logits.h"
#include "tensor/cpu/attention/attention_problem.h"
#include "tensor/cpu/simd/parallel.h"
#include "tensor/ops/attention_logits.h"
#include "tensor/ops/kernels.h"

namespace mcpp {
namespace kernel {
namespace {

/// Maximum number of queries processed one by one.
constexpr i64 kFewQueries = 3;

/// Calls f(item, memory) for all items, with `bytes` of memory per thread, allocated before threads start.
template <class F>
void run_items(CpuDevice& device, i64 items, i64 bytes, F&& f) {
  const i64 stride = round_up(bytes, 4096) + 64;  // avoids false sharing and cache set conflicts between threads
  const Buffer memory(device.threads() * stride, device, MemoryClass::Workspace);
  parallel_for(device, items, 1, [&](i64 item, i64) { f(item, memory.data() + omp_get_thread_num() * stride); });
}

/// Zeroes the gradients of keys that no query sees.
template <class E, class W>
void zero_rows(const ResultRows<E, W>& x, i64 b, i64 head, i64 begin, i64 end) {
  x.visit([=]<class T>(const HeadRows<T>& rows) {
    for (i64 s = begin; s < end; ++s) std::fill_n(rows.row(b, head, s), rows.head_dim, T());
  });
}

}  // namespace

template <class T>
void attention_forward(AttentionProblem<T> p, CpuDevice& device) {
  if (p.queries <= kFewQueries && p.dropout.p == 0) {
    return run_items(device, p.batch * p.heads, attention_decode_bytes(p),
                     [&](i64 item, std::byte* memory) { attention_decode_item(p, item, memory); });
  }
  // Sharing the packed keys saves work, but every thread needs an item. The split does not change results.
  const i64 shared = p.batch * p.kv_heads, threads = device.threads();
  if (threads > 1 && shared < 4 * threads) {
    p.parts = std::min(ceil_div(4 * threads, shared), p.group() * p.query_blocks());
  }
  run_items(device, shared * p.parts, attention_forward_bytes(p),
            [&](i64 item, std::byte* memory) { attention_forward_item(p, item, memory); });
}

template <class T>
void attention_backward(const AttentionProblem<T>& p, CpuDevice& device) {
  const i64 bytes = attention_backward_bytes(p.rows(), sizeof(AccumulateType<T>));
  run_items(device, p.batch * p.kv_heads, bytes, [&](i64 item, std::byte* memory) {
    attention_backward_item(p, item, memory);
    for (const auto& x : {p.dk, p.dv}) zero_rows(x, item / p.kv_heads, item % p.kv_heads, p.keys, p.all_keys);
  });
}

/// Computes largest[h] = max(largest[h], scores of head h). Uses the work items of attention_forward().
template <class T, class R = AccumulateType<T>>
void max_attention_logits(AttentionProblem<T> p, CpuDevice& device, R* largest) {
  const i64 shared = p.batch * p.kv_heads, threads = device.threads();
  if (threads > 1 && shared < 4 * threads)
    p.parts = std::clamp<i64>(ceil_div(4 * threads, std::max<i64>(shared, 1)), 1, p.group() * p.query_blocks());
  const R factor = static_cast<R>(p.score_factor());
  std::vector<R> of_items(static_cast<std::size_t>(p.batch * p.parts * p.heads));
  run_items(device, shared * p.parts, attention_logits_bytes(p), [&](i64 item, std::byte* memory) {
    const i64 part = item % p.parts, b = item / p.parts / p.kv_heads;
    attention_logits_item(p, item, memory, of_items.data() + (b * p.parts + part) * p.heads);
  });
  for (std::size_t i = 0; i < of_items.size(); ++i) {
    R& to = largest[static_cast<i64>(i) % p.heads];
    to = std::max(to, factor * of_items[i]);
  }
}

template void attention_forward(AttentionProblem<float>, CpuDevice&);
template void attention_forward(AttentionProblem<double>, CpuDevice&);
template void attention_forward(AttentionProblem<BFloat16>, CpuDevice&);
template void attention_forward(AttentionProblem<Float16>, CpuDevice&);
template void attention_backward(const AttentionProblem<float>&, CpuDevice&);
template void attention_backward(const AttentionProblem<double>&, CpuDevice&);
template void attention_backward(const AttentionProblem<BFloat16>&, CpuDevice&);
template void attention_backward(const AttentionProblem<Float16>&, CpuDevice&);

}  // namespace kernel

namespace {

template <class T>
kernel::AttentionProblem<T> make_problem(const QkvHeads& x, const AttentionOptions& options, const AttentionResult& y) {
  kernel::AttentionProblem<T> p(x, options, y);
  if (std::is_same_v<T, BFloat16>) p.bf16_path = kernel::best_bf16_path();
  return p;
}

}  // namespace

template <>
void Kernels<DeviceType::Cpu>::attention(const QkvHeads& x, const AttentionOptions& options, AttentionResult& y) {
  on_float(x.q.base.dtype(), [&]<class T>() {
    kernel::AttentionProblem<T> p = make_problem<T>(x, options, y);
    p.template read_forward<T>(y);
    kernel::attention_forward(p, cpu(y.out));
  });
}

template <>
void AttentionLogitKernels<DeviceType::Cpu>::max_attention_logits(const QkvHeads& x, const AttentionOptions& options,
                                                                  Tensor& largest) {
  if (x.q.seq == 0 || x.q.batch == 0) return;
  on_float(x.q.base.dtype(), [&]<class T>() {
    const AttentionResult unused{.out = {}, .lse = largest};
    kernel::max_attention_logits(make_problem<T>(x, options, unused), cpu(largest), largest.data<AccumulateType<T>>());
  });
}

template <>
void Kernels<DeviceType::Cpu>::attention_backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                                                  const AttentionOptions& options, QkvHeads& dx) {
  on_float(x.q.base.dtype(), [&]<class T>() {
    kernel::AttentionProblem<T> p = make_problem<T>(x, options, y);
    p.template read_backward<T>(dout, y, dx);
    kernel::attention_backward(p, cpu(dout));
  });
}

}  // namespace mcpp
