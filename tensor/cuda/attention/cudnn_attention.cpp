// Attention as graphs in the form that cuDNN's fused kernels are recognised by: NVIDIA/cudnn-frontend, "Attention".
#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "tensor/cuda/attention/attention.h"
#include "tensor/cuda/attention/cudnn_graph.h"
#include "tensor/cuda/attention/cudnn_layout.h"
#include "tensor/cuda/device.h"

namespace mcpp {

struct CudnnAttention {
  cudnnHandle_t handle = nullptr;
  std::map<AttentionCase, std::optional<CudnnPlan>> plans;  ///< without a plan: cuDNN lacks the case

  ~CudnnAttention() {
    plans.clear();
    cudnnDestroy(handle);
  }
};

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

enum Id : i64 { kQ = 1, kK, kV, kOut, kLse, kScale, kMasked, kDout, kDq, kDk, kDv, kDelta, kOne };

cudnnDataType_t cudnn_type(const AttentionCase& c) {
  return c.dtype == DType::F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

/// One number for each query: [batch, heads, s, 1].
CudnnShape per_query(const CudnnShape& q) {
  return CudnnShape::dense(q.dims[0], q.dims[1], q.dims[2], 1);
}
CudnnShape scores_of(const CudnnShape& q, const CudnnShape& k) {
  return CudnnShape::dense(q.dims[0], q.dims[1], q.dims[2], k.dims[2]);
}
CudnnShape like_dense(const CudnnShape& x, i64 heads) {
  return CudnnShape::dense(x.dims[0], heads, x.dims[2], x.dims[3]);
}

/// scale q k^T, -inf where a query does not see the key.
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
  const CudnnValue scores = masked_scores(graph, q, kt, graph.scalar(kScale), c.causal);

  const CudnnValue largest = graph.inner(lse.shape), sum = graph.inner(lse.shape);
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, scores, largest);
  const CudnnValue powers = graph.pointwise(CUDNN_POINTWISE_EXP, graph.pointwise(CUDNN_POINTWISE_SUB, scores, largest));
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, powers, sum);
  graph.pointwise(CUDNN_POINTWISE_ADD, largest, graph.pointwise(CUDNN_POINTWISE_LOG, sum), lse);
  const CudnnValue probabilities = graph.inner(scores.shape, type);
  graph.pointwise(CUDNN_POINTWISE_DIV, powers, sum, probabilities);
  graph.matmul(probabilities, v, out);
}

/// dx = a^T b, where dx has fewer heads than a and b: summed over the query heads that share one.
void transposed_product(CudnnGraph& graph, cudnnDataType_t type, const CudnnValue& a, const CudnnValue& b,
                        const CudnnValue& dx) {
  const CudnnShape& s = a.shape;
  const CudnnValue at = graph.inner(s.transposed(), type);
  graph.reshape(a, at);
  if (dx.shape.dims[1] == s.dims[1]) return graph.matmul(at, b, dx);
  const CudnnValue every_head = graph.inner(like_dense(dx.shape, s.dims[1]), type);
  graph.matmul(at, b, every_head);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, every_head, dx);
}

/// The sum over channels of dout * out, which goes through memory: the kernels for dq and for dk, dv read it.
CudnnValue build_delta(CudnnGraph& graph, const CudnnValue& dout, const CudnnValue& out) {
  const CudnnShape rows = per_query(dout.shape);
  const CudnnValue products = graph.inner(like_dense(dout.shape, dout.shape.dims[1]));
  graph.pointwise(CUDNN_POINTWISE_MUL, dout, out, products);
  const CudnnValue sums = graph.inner(rows), delta = graph.in_memory(kDelta, rows, CUDNN_DATA_FLOAT);
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, products, sums);
  graph.pointwise(CUDNN_POINTWISE_MUL, sums, graph.scalar(kOne), delta);
  return delta;
}

/// The deterministic form: dq is a product of its own, rather than being gathered by atomic additions.
/// The probabilities then go through memory, see backward_part().
void build_backward(CudnnGraph& graph, const AttentionCase& c) {
  const cudnnDataType_t type = cudnn_type(c);
  const auto narrow = [&](Id id, const CudnnShape& shape) { return graph.in_memory(id, shape, type); };
  const CudnnValue q = narrow(kQ, c.shapes[0]), kt = narrow(kK, c.shapes[1].transposed());
  const CudnnValue vt = narrow(kV, c.shapes[2].transposed()), out = narrow(kOut, c.shapes[3]);
  const CudnnValue dout = narrow(kDout, c.shapes[4]), dq = narrow(kDq, c.shapes[5]);
  const CudnnValue dk = narrow(kDk, c.shapes[6]), dv = narrow(kDv, c.shapes[7]);
  const CudnnValue lse = graph.in_memory(kLse, per_query(q.shape), CUDNN_DATA_FLOAT), scale = graph.scalar(kScale);
  const CudnnValue delta = build_delta(graph, dout, out);

  const CudnnValue scores = masked_scores(graph, q, kt, scale, c.causal);
  const CudnnValue probabilities =
      graph.pointwise(CUDNN_POINTWISE_EXP, graph.pointwise(CUDNN_POINTWISE_SUB, scores, lse));
  transposed_product(graph, type, probabilities, dout, dv);

  const CudnnValue dprobabilities = graph.inner(scores.shape);
  graph.matmul(dout, vt, dprobabilities);
  const CudnnValue centred = graph.pointwise(CUDNN_POINTWISE_SUB, dprobabilities, delta);
  const CudnnValue dscores =
      graph.pointwise(CUDNN_POINTWISE_MUL, graph.pointwise(CUDNN_POINTWISE_MUL, centred, probabilities), scale);
  transposed_product(graph, type, dscores, q, dk);
  const CudnnValue k = graph.inner(c.shapes[1], type);
  graph.reshape(kt, k);
  graph.matmul(dscores, k, dq);
}

const CudnnPlan* plan_for(CudnnAttention& state, const AttentionCase& c) {
  auto found = state.plans.find(c);
  if (found == state.plans.end()) {
    CudnnGraph graph(state.handle);
    c.backward ? build_backward(graph, c) : build_forward(graph, c);
    found = state.plans.emplace(c, graph.compile()).first;
  }
  return found->second ? &*found->second : nullptr;
}

/// The masks that cuDNN knows: below the diagonal, or none.
enum class Mask : u8 { Causal, None, Other };

/// Whether the window hides a key from the last query; there are as many queries as keys.
bool is_windowed(const Heads& k, const AttentionOptions& options) {
  return options.window > 0 && options.queries.ranges.at(k.seq - 1) - options.keys.at(0) >= options.window;
}

Mask mask_of(const Heads& k, const AttentionOptions& options) {
  if (options.queries.starts.defined() || is_windowed(k, options)) return Mask::Other;
  if (options.queries.ranges == options.keys) return Mask::Causal;
  return options.keys.at(k.seq - 1) <= options.queries.ranges.at(0) ? Mask::None : Mask::Other;
}

bool is_suited(const Heads& q, const Heads& k, const AttentionOptions& options) {
  // Before 9.16 other lengths need padding masks in the backward pass.
  constexpr std::size_t kAnyLength = 91600;
  return is_narrow(q.base.dtype()) && options.dropout.p == 0 && options.soft_cap == 0 &&
         mask_of(k, options) != Mask::Other && q.seq == k.seq && q.seq > 1 && q.batch > 0 && q.heads > 0 &&
         q.head_dim % 8 == 0 && q.head_dim <= 128 && (q.seq % 128 == 0 || cudnnGetVersion() >= kAnyLength);
}

/// Both narrow types have two bytes.
const std::byte* first(const Heads& x) {
  return static_cast<const std::byte*>(x.base.raw()) + 2 * x.offset;
}

/// Every row of heads must begin at a multiple of 16 bytes.
bool is_aligned(const Heads& x) {
  const auto address = reinterpret_cast<std::uintptr_t>(first(x));
  return address % 16 == 0 && (x.seq_stride | x.batch_stride | x.group_stride) % 8 == 0;
}

/// The case of these operands (q, k, v, out, ..); without shapes when cuDNN's kernels cannot take them.
AttentionCase make_case(std::span<const Heads* const> operands, bool backward, const AttentionOptions& options) {
  AttentionCase c{backward, mask_of(*operands[1], options) == Mask::Causal, {}, operands[0]->base.dtype()};
  if (is_suited(*operands[0], *operands[1], options) &&
      std::ranges::all_of(operands, [](const Heads* x) { return is_aligned(*x); }))
    c.shapes = cudnn_shapes(operands, operands[1]->heads, backward);
  return c;
}

/// On later GPUs the graph of build_backward() does not make the library choose an engine with a fixed order of sums.
constexpr int kNewestDeterministic = 9;
constexpr std::array kOperands{kQ, kK, kV, kOut, kDout, kDq, kDk, kDv};
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

}  // namespace

bool FusedAttention::forward(const QkvHeads& x, const AttentionOptions& options, AttentionResult& y) {
  CudaDevice& device = cuda(y.out);
  const auto& [q, k, v] = x;
  const Heads o = dense_heads(y.out, q.heads);
  const AttentionCase c = make_case(std::array{&q, &k, &v, &o}, false, options);
  const CudnnPlan* plan = c.shapes.empty() ? nullptr : plan_for(device.cudnn(), c);
  if (!plan) return false;
  const float scale = static_cast<float>(options.softmax_scale);
  std::vector<CudnnBinding> bindings{{kQ, first(q)},   {kK, first(k)},      {kV, first(v)},
                                     {kOut, first(o)}, {kLse, y.lse.raw()}, {kScale, &scale}};
  if (c.causal) bindings.push_back({kMasked, &kMinusInfinity});
  const Buffer workspace(plan->workspace(), device, MemoryClass::Workspace);
  plan->run(device.cudnn().handle, bindings, workspace.data());
  return true;
}

bool FusedAttention::backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                              const AttentionOptions& options, QkvHeads& dx) {
  CudaDevice& device = cuda(dout);
  if (device.options().deterministic && device.properties().major > kNewestDeterministic) return false;
  const Heads o = dense_heads(y.out, x.q.heads), d = dense_heads(dout, x.q.heads);
  const std::array<const Heads*, 8> operands{&x.q, &x.k, &x.v, &o, &d, &dx.q, &dx.k, &dx.v};
  AttentionCase c = make_case(operands, true, options);
  if (c.shapes.empty()) return false;
  const i64 all = c.shapes[0].dims[0], part = backward_part(c.shapes[0]), rows = part * c.shapes[0].dims[1] * x.q.seq;
  if (part != all && rows % 4 != 0) return false;  // cuDNN is promised 16-byte alignment of each part of lse
  for (CudnnShape& shape : c.shapes) shape.dims[0] = part;
  const CudnnPlan* plan = plan_for(device.cudnn(), c);
  if (!plan) return false;
  const float scale = static_cast<float>(options.softmax_scale), one = 1;
  const Tensor delta = Tensor::empty({rows}, DType::F32, device, MemoryClass::Workspace);
  const Buffer workspace(plan->workspace(), device, MemoryClass::Workspace);
  for (i64 begin = 0; begin < all; begin += part) {
    std::vector<CudnnBinding> bindings{{kScale, &scale}, {kOne, &one}, {kDelta, delta.raw()}};
    if (c.causal) bindings.push_back({kMasked, &kMinusInfinity});
    bindings.push_back({kLse, y.lse.data<float>() + begin / part * rows});
    for (std::size_t i = 0; i < operands.size(); ++i)
      bindings.push_back({kOperands[i], first(*operands[i]) + 2 * begin * c.shapes[i].strides[0]});
    plan->run(device.cudnn().handle, bindings, workspace.data());
  }
  return true;
}

}  // namespace mcpp
