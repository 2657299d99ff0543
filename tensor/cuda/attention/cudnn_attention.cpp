// Attention as graphs in the form recognized by cuDNN's fused kernels: NVIDIA/cudnn-frontend, "Attention".
#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "tensor/cuda/attention/attention.h"
#include "tensor/cuda/attention/cudnn_graph.h"
#include "tensor/cuda/attention/cudnn_layout.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda_device.h"

namespace mcpp {

struct CudnnAttention {
  cudnnHandle_t handle = nullptr;
  std::map<AttentionCase, CudnnPlanResult> plan_cache;

  ~CudnnAttention() {
    plan_cache.clear();
    cudnnDestroy(handle);
  }
};

std::string cudnn_version() {
  const std::size_t version = cudnnGetVersion();
  return str(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

CudnnAttention* make_cudnn(const CudaDevice& device) {
  auto state = std::make_unique<CudnnAttention>();
  check_cudnn(cudnnCreate(&state->handle), "cudnnCreate");
  check_cudnn(cudnnSetStream(state->handle, device.stream()), "cudnnSetStream");
  return state.release();
}

void destroy_cudnn(CudnnAttention* state) {
  delete state;
}

namespace {

void warn_fallback_kernel(CudaDevice& device, bool backward, const std::string& why) {
  device.add_notice(str("attention's ", backward ? "backward" : "forward",
                        " runs in this program's own kernel, several times slower than cuDNN's: ", why));
}

enum Id : i64 { kQ = 1, kK, kV, kOut, kLse, kScale, kMasked, kDout, kDq, kDk, kDv, kDelta, kOne, kDqSum };

cudnnDataType_t cudnn_type(const AttentionCase& c) {
  return c.dtype == DType::F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

/// Returns the shape of one value per query: [batch, heads, s, 1].
CudnnShape per_query(const CudnnShape& q) {
  return CudnnShape::dense(q.dims[0], q.dims[1], q.dims[2], 1);
}
CudnnShape scores_of(const CudnnShape& q, const CudnnShape& k) {
  return CudnnShape::dense(q.dims[0], q.dims[1], q.dims[2], k.dims[2]);
}
CudnnShape like_dense(const CudnnShape& x, i64 heads) {
  return CudnnShape::dense(x.dims[0], heads, x.dims[2], x.dims[3]);
}

/// Computes scale q k^T, -inf where a query does not see the key.
CudnnValue masked_scores(CudnnGraph& graph, const CudnnValue& q, const CudnnValue& kt, const CudnnValue& scale,
                         bool causal) {
  const CudnnValue products = graph.inner(scores_of(q.shape, kt.shape.transposed()));
  graph.matmul(q, kt, products);
  const CudnnValue scores = graph.pointwise(CUDNN_POINTWISE_MUL, products, scale);
  return causal ? graph.lower_triangle(scores, graph.scalar(kMasked)) : scores;
}

void build_forward(CudnnGraph& graph, const AttentionCase& c) {
  const cudnnDataType_t type = cudnn_type(c);
  const CudnnValue q = graph.in_memory(kQ, c.shapes[0], type);
  const CudnnValue kt = graph.in_memory(kK, c.shapes[1].transposed(), type);
  const CudnnValue v = graph.in_memory(kV, c.shapes[2], type);
  const CudnnValue out = graph.in_memory(kOut, c.shapes[3], type);
  const CudnnValue lse = graph.in_memory(kLse, per_query(q.shape), CUDNN_DATA_FLOAT);
  const CudnnValue scores = masked_scores(graph, q, kt, graph.scalar(kScale), c.is_causal);

  const CudnnValue largest = graph.inner(lse.shape), sum = graph.inner(lse.shape);
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, largest);
  const CudnnValue powers = graph.pointwise(CUDNN_POINTWISE_EXP, graph.pointwise(CUDNN_POINTWISE_SUB, scores, largest));
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, powers, sum);
  graph.pointwise(CUDNN_POINTWISE_ADD, largest, graph.pointwise(CUDNN_POINTWISE_LOG, sum), lse);
  const CudnnValue probabilities = graph.inner(scores.shape, type);
  graph.pointwise(CUDNN_POINTWISE_DIV, powers, sum, probabilities);
  graph.matmul(probabilities, v, out);
}

/// Computes dx = a^T b; if dx has fewer heads than a and b, sums over the query heads that share one.
void transposed_product(CudnnGraph& graph, cudnnDataType_t type, const CudnnValue& a, const CudnnValue& b,
                        const CudnnValue& dx) {
  const CudnnShape& s = a.shape;
  const CudnnValue at = graph.inner(s.transposed(), type);
  graph.reshape(a, at);
  if (dx.shape.dims[1] == s.dims[1]) return graph.matmul(at, b, dx);
  const CudnnValue strided_heads = graph.inner(like_dense(dx.shape, s.dims[1]), type);
  graph.matmul(at, b, strided_heads);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, strided_heads, dx);
}

/// Computes the sum over channels of dout * out. It goes through memory: the kernels for dq and for dk, dv read it.
CudnnValue build_delta(CudnnGraph& graph, const CudnnValue& dout, const CudnnValue& out) {
  const CudnnShape rows = per_query(dout.shape);
  const CudnnValue products = graph.inner(like_dense(dout.shape, dout.shape.dims[1]));
  graph.pointwise(CUDNN_POINTWISE_MUL, dout, out, products);
  const CudnnValue sums = graph.inner(rows), delta = graph.in_memory(kDelta, rows, CUDNN_DATA_FLOAT);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, products, sums);
  graph.pointwise(CUDNN_POINTWISE_MUL, sums, graph.scalar(kOne), delta);
  return delta;
}

/// Builds the backward graph. For a fixed order of sums, dq is a separate product, for which the probabilities go
/// through memory: see backward_part(). Otherwise dq is accumulated by atomic additions, which is requested by reading
/// it from an fp32 tensor in memory.
void build_backward(CudnnGraph& graph, const AttentionCase& c) {
  const cudnnDataType_t type = cudnn_type(c);
  const auto in_memory = [&](Id id, const CudnnShape& shape) { return graph.in_memory(id, shape, type); };
  const CudnnValue q = in_memory(kQ, c.shapes[0]), kt = in_memory(kK, c.shapes[1].transposed());
  const CudnnValue vt = in_memory(kV, c.shapes[2].transposed()), out = in_memory(kOut, c.shapes[3]);
  const CudnnValue dout = in_memory(kDout, c.shapes[4]), dq = in_memory(kDq, c.shapes[5]);
  const CudnnValue dk = in_memory(kDk, c.shapes[6]), dv = in_memory(kDv, c.shapes[7]);
  const CudnnValue lse = graph.in_memory(kLse, per_query(q.shape), CUDNN_DATA_FLOAT), scale = graph.scalar(kScale);
  const CudnnValue delta = build_delta(graph, dout, out);

  const CudnnValue scores = masked_scores(graph, q, kt, scale, c.is_causal);
  const CudnnValue probabilities =
      graph.pointwise(CUDNN_POINTWISE_EXP, graph.pointwise(CUDNN_POINTWISE_SUB, scores, lse));
  transposed_product(graph, type, probabilities, dout, dv);

  const CudnnValue dprobabilities = graph.inner(scores.shape);
  graph.matmul(dout, vt, dprobabilities);
  const CudnnValue centered = graph.pointwise(CUDNN_POINTWISE_SUB, dprobabilities, delta);
  const CudnnValue dscores =
      graph.pointwise(CUDNN_POINTWISE_MUL, graph.pointwise(CUDNN_POINTWISE_MUL, centered, probabilities), scale);
  transposed_product(graph, type, dscores, q, dk);
  const CudnnValue k = graph.inner(c.shapes[1], type);
  graph.reshape(kt, k);
  if (!c.accumulates) return graph.matmul(dscores, k, dq);
  const CudnnValue sum = graph.in_memory(kDqSum, like_dense(q.shape, q.shape.dims[1]), CUDNN_DATA_FLOAT);
  graph.matmul(dscores, k, sum);
  graph.copy(sum, dq);
}

/// Turns library errors into a failed result, since every case has an alternative implementation.
CudnnPlanResult try_compile(CudnnAttention& state, const AttentionCase& c) {
  try {
    CudnnGraph graph(state.handle);
    c.is_backward ? build_backward(graph, c) : build_forward(graph, c);
    return graph.compile();
  } catch (const Error& error) {
    return {.plan = std::nullopt, .rejection_reason = error.what()};
  }
}

const CudnnPlanResult& find_plan(CudaDevice& device, const AttentionCase& c) {
  CudnnAttention& state = device.cudnn();
  auto it = state.plan_cache.find(c);
  if (it == state.plan_cache.end()) it = state.plan_cache.emplace(c, try_compile(state, c)).first;
  return it->second;
}

/// Returns null, and records a notice, if cuDNN has no plan.
const CudnnPlan* plan_for(CudaDevice& device, const AttentionCase& c) {
  const CudnnPlanResult& result = find_plan(device, c);
  if (result.plan) return &*result.plan;
  warn_fallback_kernel(device, c.is_backward, str("cuDNN ", cudnnGetVersion(), " refuses, ", result.rejection_reason));
  return nullptr;
}

/// Masks supported by cuDNN: causal, or none.
enum class Mask : u8 { Causal, None, Other };

/// Returns true if the window hides a key from the last query; the numbers of queries and keys are equal.
bool is_windowed(const Heads& k, const AttentionOptions& options) {
  return options.window > 0 && options.queries.ranges.at(k.seq - 1) - options.keys.at(0) >= options.window;
}

Mask mask_of(const Heads& k, const AttentionOptions& options) {
  if (options.queries.starts.defined() || is_windowed(k, options)) return Mask::Other;
  if (options.queries.ranges == options.keys) return Mask::Causal;
  return options.keys.at(k.seq - 1) <= options.queries.ranges.at(0) ? Mask::None : Mask::Other;
}

/// Returns true if there is nothing to compute, or a single query, as when decoding tokens one by one: our own kernel
/// handles these.
bool is_small(const Heads& q) {
  return q.seq <= 1 || q.batch == 0 || q.heads == 0;
}

/// Returns the reason why cuDNN's kernels do not support this case, with constant wording; "" if they do.
std::string unsupported_reason(const Heads& q, const Heads& k, const AttentionOptions& options) {
  // Before 9.16 other lengths need padding masks in the backward pass.
  constexpr std::size_t kAnyLength = 91600;
  if (q.seq != k.seq) return "the queries are a part of the context, and cuDNN's masks are for as many queries as keys";
  if (!is_low_precision(q.base.dtype()))
    return str("cuDNN's kernels support bf16 and fp16, not ", name_of(q.base.dtype()));
  if (options.dropout.p > 0) return "model.attention_dropout is not 0";
  if (options.soft_cap > 0) return "model.attn_logit_softcapping is set";
  if (mask_of(k, options) == Mask::Other) return "the mask is of documents, of a window, or of a part of the context";
  if (q.head_dim % 8 != 0 || q.head_dim > 128)
    return str("heads are ", q.head_dim, " wide; cuDNN's kernels support multiples of 8 up to 128");
  if (q.seq % 128 != 0 && cudnnGetVersion() < kAnyLength)
    return str("cuDNN ", cudnnGetVersion(), " needs sequences of a multiple of 128 tokens");
  return "";
}

/// Returns the address of the first element; both low-precision types have two bytes.
const std::byte* first(const Heads& x) {
  return static_cast<const std::byte*>(x.base.raw()) + 2 * x.offset;
}

/// Returns true if every row of heads begins at a multiple of 16 bytes.
bool is_aligned(const Heads& x) {
  const auto address = reinterpret_cast<std::uintptr_t>(first(x));
  return address % 16 == 0 && (x.seq_stride | x.batch_stride | x.group_stride) % 8 == 0;
}

/// Returns the case of these operands (q, k, v, out, ...) with more than one query. If cuDNN's kernels do not support
/// them, records a notice and returns a case without shapes.
AttentionCase make_case(std::span<const Heads* const> operands, const Tensor& lse, bool backward,
                        const AttentionOptions& options, CudaDevice& device) {
  const Heads &q = *operands[0], &k = *operands[1];
  std::string why = unsupported_reason(q, k, options);
  AttentionCase c{backward, why.empty() && mask_of(k, options) == Mask::Causal, {}, q.base.dtype()};
  if (why.empty() && operands[2]->head_dim != k.head_dim) why = "values are not as wide as keys";
  if (why.empty() && !std::ranges::all_of(operands, [](const Heads* x) { return is_aligned(*x); }))
    why = "rows of heads do not begin at multiples of 16 bytes";
  if (why.empty() && reinterpret_cast<std::uintptr_t>(lse.raw()) % 16 != 0)
    why = "the log-sum-exps do not begin at a multiple of 16 bytes";
  if (why.empty()) c.shapes = cudnn_shapes(operands, k.heads, backward);
  if (c.shapes.empty())
    warn_fallback_kernel(device, backward, why.empty() ? "the layout of its tensors is not cuDNN's" : why);
  return c;
}

/// Returns the reason why dq cannot be computed in a required fixed order; "" if it can.
std::string nondeterminism_reason(const CudaDevice& device) {
  // On later GPUs the graph of build_backward() does not make the library choose an engine with a fixed order of sums.
  constexpr int kNewest = 9;
  if (!device.options().deterministic || device.properties().major <= kNewest) return "";
  return str("device.deterministic on a GPU of generation ", device.properties().major,
             ", for which cuDNN's kernel has no fixed order of sums");
}

/// Returns true if dq is accumulated by atomic additions: allowed by the options, and supported by the library.
bool accumulates(CudaDevice& device, AttentionCase c) {
  c.accumulates = true;
  return !device.options().deterministic && find_plan(device, c).plan;
}

/// Returns the reason why the probabilities of the case cannot go through memory in parts; "" if they can.
std::string split_unsupported_reason(const AttentionCase& c) {
  const CudnnShape& q = c.shapes[0];
  const i64 bytes = probability_bytes(q), rows = backward_part(q) * q.dims[1] * q.dims[2];
  if (bytes > kMaxProbabilityBytes)
    return str("probabilities of ", q.dims[2], " queries take ", bytes,
               " bytes, and the queries cannot be divided into equal blocks of tiles of ", kAttentionTile);
  // cuDNN requires 16-byte alignment of each part of lse.
  if (backward_part(q) != q.dims[0] && rows % 4 != 0)
    return str("parts of ", rows, " queries do not begin at multiples of 16 bytes");
  return "";
}

/// Allocates the fp32 memory in which dq is accumulated; empty if dq is a product.
Tensor allocate_dq_accumulator(const AttentionCase& c, CudaDevice& device) {
  // Before 9.6 the library does not zero it.
  constexpr std::size_t kZeroes = 90600;
  const auto& dims = c.shapes[0].dims;
  const i64 count = c.accumulates ? dims[0] * dims[1] * dims[2] * dims[3] : 0;
  Tensor sum = Tensor::empty({count}, DType::F32, device, MemoryClass::Workspace);
  if (count > 0 && cudnnGetVersion() < kZeroes)
    check_cuda(cudaMemsetAsync(sum.raw(), 0, static_cast<std::size_t>(sum.bytes()), device.stream()),
               "cudaMemsetAsync");
  return sum;
}

constexpr std::array kOperands{kQ, kK, kV, kOut, kDout, kDq, kDk, kDv};
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

bool FusedAttention::forward(const QkvHeads& x, const AttentionOptions& options, AttentionResult& y) {
  CudaDevice& device = cuda(y.out);
  const auto& [q, k, v] = x;
  if (is_small(q)) return false;
  const Heads o = dense_heads(y.out, q.heads);
  const AttentionCase c = make_case(std::array{&q, &k, &v, &o}, y.lse, false, options, device);
  const CudnnPlan* plan = c.shapes.empty() ? nullptr : plan_for(device, c);
  if (!plan) return false;
  const float scale = static_cast<float>(options.softmax_scale);
  std::vector<CudnnBinding> bindings{{kQ, first(q)},   {kK, first(k)},      {kV, first(v)},
                                     {kOut, first(o)}, {kLse, y.lse.raw()}, {kScale, &scale}};
  if (c.is_causal) bindings.push_back({kMasked, &kMinusInfinity});
  const Buffer workspace(plan->workspace(), device, MemoryClass::Workspace);
  plan->run(device.cudnn().handle, bindings, workspace.data());
  return true;
}

i64 FusedAttention::backward_rows(const QkvHeads& x, const QkvHeads& dx, const AttentionOptions& options) {
  CudaDevice& device = cuda(x.q.base);
  const i64 all = x.q.seq;
  if (is_small(x.q) || !nondeterminism_reason(device).empty() || !unsupported_reason(x.q, x.k, options).empty())
    return all;
  const bool has_same_dtype = dx.q.base.dtype() == x.q.base.dtype();
  const auto result = [&](const Heads& dense, const Heads& target) { return has_same_dtype ? target : dense; };
  const Heads o = dense_heads_layout(x.q);
  const Heads dq = result(o, dx.q), dk = result(dense_heads_layout(x.k), dx.k),
              dv = result(dense_heads_layout(x.v), dx.v);
  const std::array<const Heads*, 8> operands{&x.q, &x.k, &x.v, &o, &o, &dq, &dk, &dv};
  const AttentionCase c{true, mask_of(x.k, options) == Mask::Causal, cudnn_shapes(operands, x.k.heads, true),
                        x.q.base.dtype()};
  const i64 rows = c.shapes.empty() || accumulates(device, c) ? 0 : backward_block(c.shapes[0]);
  return rows > 0 ? rows : all;
}

bool FusedAttention::backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                              const AttentionOptions& options, QkvHeads& dx) {
  if (is_small(x.q)) return false;
  CudaDevice& device = cuda(dout);
  const auto refuse = [&](const std::string& why) {
    warn_fallback_kernel(device, true, why);
    return false;
  };
  if (const std::string why = nondeterminism_reason(device); !why.empty()) return refuse(why);
  const Heads o = dense_heads(y.out, x.q.heads), d = dense_heads(dout, x.q.heads);
  const std::array<const Heads*, 8> operands{&x.q, &x.k, &x.v, &o, &d, &dx.q, &dx.k, &dx.v};
  AttentionCase c = make_case(operands, y.lse, true, options, device);
  if (c.shapes.empty()) return false;
  const i64 all = c.shapes[0].dims[0];
  c.accumulates = accumulates(device, c);
  if (const std::string why = c.accumulates ? "" : split_unsupported_reason(c); !why.empty()) return refuse(why);
  const i64 part = c.accumulates ? all : backward_part(c.shapes[0]), rows = part * c.shapes[0].dims[1] * x.q.seq;
  for (CudnnShape& shape : c.shapes) shape.dims[0] = part;
  const CudnnPlan* plan = plan_for(device, c);
  if (!plan) return false;
  const float scale = static_cast<float>(options.softmax_scale), one = 1;
  const Tensor delta = Tensor::empty({rows}, DType::F32, device, MemoryClass::Workspace);
  const Tensor sum = allocate_dq_accumulator(c, device);
  const Buffer workspace(plan->workspace(), device, MemoryClass::Workspace);
  for (i64 begin = 0; begin < all; begin += part) {
    std::vector<CudnnBinding> bindings{{kScale, &scale}, {kOne, &one}, {kDelta, delta.raw()}};
    if (c.is_causal) bindings.push_back({kMasked, &kMinusInfinity});
    if (c.accumulates) bindings.push_back({kDqSum, sum.raw()});
    bindings.push_back({kLse, y.lse.data<float>() + begin / part * rows});
    for (std::size_t i = 0; i < operands.size(); ++i)
      bindings.push_back({kOperands[i], first(*operands[i]) + 2 * begin * c.shapes[i].strides[0]});
    plan->run(device.cudnn().handle, bindings, workspace.data());
  }
  return true;
}

}  // namespace mcpp
