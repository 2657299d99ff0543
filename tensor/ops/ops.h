// Tensor operations: declared here, checked and dispatched by device in ops.cpp, and implemented once per backend
// (tensor/cpu/, tensor/cuda/, in files named after the op). Arithmetic is done in fp32, for fp64 tensors in fp64;
// results are rounded once. Statistics and main gradients are fp32 (fp64 for fp64 tensors).
//
// Shape letters: T tokens (s * b rows), h hidden size, f MLP width, V local vocabulary rows, s sequence, b batch, E
// experts, k experts per token. `beta` is as in BLAS: 0 overwrites the output (regardless of its contents), 1 adds to
// it. Results do not depend on the number of threads.
#pragma once
#include <limits>
#include <span>
#include <vector>

#include "tensor/ops/positions.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Activation of the MLP. Gated: the input has two halves, gate and up; the output is act(gate) * up. QuickGeGlu's
/// act(x) is x sigmoid(1.702 x).
enum class Activation : u8 { Gelu, GeluErf, SquaredRelu, SwiGlu, GeGlu, QuickGeGlu };
constexpr bool is_gated(Activation a) {
  return a == Activation::SwiGlu || a == Activation::GeGlu || a == Activation::QuickGeGlu;
}

/// Activation with limits of a gated one: act(min(gate, clamp)) * (max(-clamp, min(up, clamp)) + up_offset).
struct ActivationRule {
  Activation function = Activation::Gelu;
  double clamp = 0;  ///< 0 = no limit
  double up_offset = 0;

  constexpr ActivationRule(Activation f) : function(f) {}  // implicit conversion from the function
  constexpr ActivationRule(Activation f, double clamp_value, double offset)
      : function(f), clamp(clamp_value), up_offset(offset) {}
  constexpr bool is_limited() const { return clamp > 0 || up_offset != 0; }
};

/// Dropout site. The random numbers do not depend on the layout: element j of the token at (sample, position) is kept
/// if word j % 4 of Philox4x32-10(key, {low and high half of sample, position, j / 4}) is at least p * 2^32; kept
/// values are multiplied by 1 / (1 - p). Row r of a [s * b, h] tensor is position positions.at(r / b) of samples[r %
/// b], and its column i is element first_column + i. tensor/ops/dropout.h implements the arithmetic. `key` is derived
/// from seed, layer and site.
struct Dropout {
  float p = 0;  ///< drop probability; 0 disables dropout, and nothing else is read
  u64 key = 0;
  std::vector<i64> samples;  ///< [b] global sample index of each batch column
  /// Copy of `samples` on a GPU, int64 [b], which kernels read when they run instead of `samples`. Undefined: none.
  Tensor sample_indices = {};
  PositionRanges positions = {};  ///< positions of the rows of the sequence
  i64 first_column = 0;           ///< global index of column 0 if columns are sharded across ranks
};

/// View of q, k or v as [seq, batch, heads, head_dim] inside a larger tensor. Element (s, b, head, d) is at offset + s
/// * seq_stride + b * batch_stride + (head / group_size) * group_stride + (head % group_size) * head_dim + d.
struct Heads {
  Tensor base;
  i64 offset = 0;
  i64 seq = 0, batch = 0, heads = 0, head_dim = 0;
  i64 group_size = 1;  ///< adjacent heads before the next jump of group_stride
  i64 seq_stride = 0, batch_stride = 0, group_stride = 0;
};

/// Operands of attention. k and v may have fewer heads than q (grouped queries: q.heads % k.heads == 0) and different
/// positions.
struct QkvHeads {
  Heads q, k, v;
};
/// Returns a view of a dense tensor [s, b, heads * head_dim], or of one with a separate axis of heads.
Heads dense_heads(const Tensor& x, i64 heads);
/// Returns heads [first, first + count) of x: complete groups, or some heads of one group.
Heads slice_heads(const Heads& x, i64 first, i64 count);
/// Returns heads first, first + step, ... of x, whose heads must be equally spaced.
Heads strided_heads(const Heads& x, i64 first, i64 step);
/// Returns views into a fused QKV tensor [s, b, groups, (q_per_group + 2), head_dim], Megatron's layout: per group its
/// query heads, then its key, then its value.
QkvHeads packed_heads(const Tensor& qkv);

/// Options of attention. A query sees a key of its own document that is not in its future and is among the last
/// `window` keys: starts(query) <= position(key) <= position(query) and position(query) - position(key) < window.
struct AttentionOptions {
  double softmax_scale = 1;
  double soft_cap = 0;  ///< if not 0, a score x becomes soft_cap tanh(x / soft_cap)
  Positions queries;    ///< positions of the queries; `starts` is [s, b]
  PositionRanges keys;  ///< positions of the keys and values
  i64 window = 0;       ///< number of positions a query sees, including its own; 0 = all
  /// Length of the chunks of positions to which `queries.starts` limit attention, for recorded FLOPs only; 0 = none.
  i64 chunk = 0;
  Dropout dropout;  ///< dropout of the probabilities; the element index is (query head, query position, key position)
};

/// Result of attention over a subset of the keys. Results for the same queries and disjoint keys can be merged.
struct AttentionResult {
  /// Output [s, b, heads * head_dim] in the dtype of the queries, or in the accumulate dtype to avoid rounding of
  /// partial results. Zero for a query that sees no key.
  Tensor out;
  Tensor lse;  ///< log of the softmax denominator, fp32 (fp64) [b, heads, s]; -infinity if no key is seen
};

/// Parameters of a norm.
struct NormRule {
  double eps = 1e-5;
  double weight_offset = 0;  ///< added to every weight: 1 if weights are stored relative to 1
  /// For RMSNorm of rows whose columns are sharded across ranks: row_dots() of x with itself, summed over the ranks,
  /// fp32 (fp64) [T], and the total number of columns. Undefined if rows are not sharded.
  Tensor squares = {};
  i64 all_columns = 0;

  NormRule(double epsilon) : eps(epsilon) {}  // implicit conversion from eps
};

/// Forward-pass data needed by the backward pass of a norm.
struct NormForward {
  Tensor x, w;
  Tensor mean, rstd;  ///< RMSNorm has no mean
  double weight_offset = 0;
  /// If the columns are sharded across ranks: row_dots() of x with dy times the weights, summed over the ranks.
  /// Undefined if rows are not sharded.
  Tensor dots = {};
  i64 all_columns = 0;
};

/// Gradients of a norm. dx is overwritten, or added to if `add_to_dx`, in which case it already holds the gradient of
/// the residual branch.
struct NormGradients {
  Tensor dx;
  bool add_to_dx = false;
  Tensor dw;
  float beta_dw = 0;
  Tensor db = {};  ///< RMSNorm has no bias
  float beta_db = 0;
};

/// Score function of a router. SqrtSoftplus is sqrt(log(1 + exp(x))) of a logit x.
enum class RouterScore : u8 { Softmax, Sigmoid, SqrtSoftplus };

/// Selection and weighting of experts, as Megatron Core's topk_routing_with_score_function.
struct RoutingRule {
  i64 topk = 2;
  RouterScore score = RouterScore::Softmax;
  bool pre_softmax = false;        ///< softmax over all experts; otherwise over the chosen ones
  i64 groups = 0, group_topk = 0;  ///< experts are chosen from the best group_topk of `groups` groups; 0 = no groups
  double scale = 1;                ///< multiplies the weights
  i64 group_score_topk = 0;  ///< number of a group's best scores that are summed as its score; 0 = topk / group_topk

  constexpr i64 scores_per_group() const {
    return groups == 0 ? 1 : group_score_topk > 0 ? group_score_topk : topk / group_topk;
  }
};

struct AdamWStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  i64 step = 1;           ///< update number, starting at 1: bias correction uses beta^step
  double grad_scale = 1;  ///< factor of the gradient: normalization times clipping
  /// Factor that multiplies grad_scale, fp64 [1]. If it is not finite, nothing is updated. Undefined = 1. The host need
  /// not know its value.
  Tensor factor = {};
};

struct SgdStep {
  double lr = 0, momentum = 0, weight_decay = 0;
  double grad_scale = 1;
  Tensor factor = {};  ///< see AdamWStep
};

struct MomentumStep {
  double momentum = 0;
  bool nesterov = false;
  Tensor factor = {};  ///< see AdamWStep
};

struct ApplyUpdateStep {
  double lr = 0, weight_decay = 0;
  Tensor factor = {};  ///< if not finite, nothing is updated; otherwise it has no effect
};

/// Parameters of compute_update_scale().
struct StepRule {
  double grad_scale = 1;  ///< multiplies the gradient in addition to 1 / number of targets: 1 / loss scale
  double clip_grad = 0;   ///< maximum norm, 0 = no limit; scales by clip_grad / (norm + 1e-6), as Megatron-LM does
  bool round_norm_to_fp32 = true;  ///< hides that layouts sum squares in different orders
  /// A finite step above one of these limits is a spike.
  double max_loss = std::numeric_limits<double>::infinity();
  double max_grad_norm = std::numeric_limits<double>::infinity();
  bool should_skip_spikes = false;
};

/// Status of a step, from best to worst.
enum class StepStatus : u8 { Fine, Spike, NotFinite };

/// Indices of the results of compute_update_scale(); fp64, never NaN. Ranks use the maximum of each scalar over all
/// ranks, so that a rank with faulty memory cannot decide differently.
struct StepScalars {
  static constexpr i64 kLoss = 0;      ///< mean over the targets, 0 without any; infinity if not finite
  static constexpr i64 kTargets = 1;   ///< number of targets
  static constexpr i64 kGradNorm = 2;  ///< before clipping; infinity if not finite
  static constexpr i64 kFactor = 3;    ///< scale of the update, from normalization and clipping; infinity = no update
  static constexpr i64 kStatus = 4;    ///< a StepStatus
  static constexpr i64 kCount = 5;
};

namespace ops {

struct MatmulOptions {
  bool transpose_a = false;
  bool transpose_b = false;
  float beta = 0;
};

/// Computes c[M, N] = op(a) op(b) + beta c. op(a) is [M, K], op(b) is [K, N]; matrices (use as_matrix()). Dtypes: all
/// fp32, all fp64, or a and b of a low-precision dtype (bf16, fp16) with c of that dtype or fp32. Accumulates in fp32
/// or better.
void matmul(const Tensor& a, const Tensor& b, Tensor& c, const MatmulOptions& options = {});

void fill_zero(Tensor& x);
/// Sets all elements of a floating-point tensor to `value`, rounded to its dtype.
void fill(Tensor& x, double value);
/// Copies src to dst, converting between floating-point dtypes. The tensors must have the same number of elements, and
/// the same dtype unless both are floating-point.
void copy(const Tensor& src, Tensor& dst);
/// Computes x *= factor.
void scale(Tensor& x, double factor);
/// Computes x = cap tanh(x / cap).
void soft_cap(Tensor& x, double cap);
/// Computes y += x, of the same dtype.
void add_to(const Tensor& x, Tensor& y);
/// Returns the sum of squares in fp64, computed in a fixed order. Infinite or NaN if x has such an element or the sum
/// overflows.
double sum_of_squares(const Tensor& x);
/// Adds the sum of squares of x to `sum`, fp64 [1], without synchronizing with the host.
void add_sum_of_squares(const Tensor& x, Tensor& sum);
/// Computes x /= sqrt(squares) + eps. squares, fp64 [1]: sum of squares of x, or of the full tensor if x is a shard.
void normalize(Tensor& x, const Tensor& squares, double eps);
/// Computes db[n] = beta db + sum over rows of dy[T, n]: the gradient of a bias. db is fp32 (fp64).
void column_sum(const Tensor& dy, Tensor& db, float beta);
/// Computes x[T, n] += bias[n].
void add_bias(Tensor& x, const Tensor& bias);

/// Computes y[T, h] = (x - mean) rstd w + b over each row; mean, rstd [T] are saved for the backward pass. Ba, Kiros,
/// Hinton 2016.
void layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, const NormRule& rule, Tensor& y, Tensor& mean,
                Tensor& rstd);
void layer_norm_backward(const Tensor& dy, const NormForward& y, NormGradients& gradients);
/// Computes y[T, h] = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps). Zhang, Sennrich 2019.
void rms_norm(const Tensor& x, const Tensor& w, const NormRule& rule, Tensor& y, Tensor& rstd);
void rms_norm_backward(const Tensor& dy, const NormForward& y, NormGradients& gradients);
/// Computes dots[t] = sum over columns of a[t] b[t], times (w + weight_offset) unless w is null. dots is fp32 (fp64)
/// [T].
void row_dots(const Tensor& a, const Tensor& b, const Tensor* w, double weight_offset, Tensor& dots);

/// Computes y = act(x + bias). x [T, f] and y [T, f]; gated: x [T, 2f] = gate | up, y [T, f]. `bias` (of x's width) may
/// be null.
void activation(const ActivationRule& a, const Tensor& x, const Tensor* bias, Tensor& y);
/// Computes dx from dy and the forward pass's x (and bias); dx may alias x.
void activation_backward(const ActivationRule& a, const Tensor& dy, const Tensor& x, const Tensor* bias, Tensor& dx);

/// Computes y = x * sigmoid(gate), all of the same shape; y may alias x or gate.
void sigmoid_gate(const Tensor& x, const Tensor& gate, Tensor& y);
/// Computes dx and d_gate from dy and the forward pass's x and gate; dx and d_gate may each alias one of the inputs.
void sigmoid_gate_backward(const Tensor& dy, const Tensor& x, const Tensor& gate, Tensor& dx, Tensor& d_gate);

/// Computes y = residual + dropout(x + bias), all [T, h] with T = s * b rows, sequence first; bias [h] may be null; y
/// may alias x or residual.
void bias_dropout_add(const Tensor& x, const Tensor* bias, const Tensor& residual, const Dropout& dropout, Tensor& y);
/// Computes y = dropout(x), [T, h]. The backward pass is the same op. y may alias x.
void dropout(const Tensor& x, const Dropout& dropout, Tensor& y);
/// Multiplies x [T, h] by factors that are uniform in [1 - p, 1 + p) and drawn from the random words that dropout would
/// use. The backward pass is the same op. y may alias x. Fedus et al., "Switch Transformers", 2021.
void jitter(const Tensor& x, const Dropout& draws, Tensor& y);

/// Computes magnitude times cos and sin of position * frequencies[i], as [positions, frequencies], in fp64. Su et al.,
/// "RoFormer", 2021.
void rope_table(const std::vector<double>& frequencies, double magnitude, Tensor& cos, Tensor& sin);
/// Rotates the first 2 * cos.dim(1) channels of every head in place (rotate-half: channel i pairs with i + dim / 2).
/// The table's row is the token's position in its document. `is_inverse` rotates back for the backward pass, also if
/// the table has a magnitude.
void rope(Heads& x, const Tensor& cos, const Tensor& sin, const Positions& positions, bool is_inverse);

/// Computes y.out = softmax(scale q k^T) v over the keys that each query sees. Never materializes s x s scores; blocks
/// of keys that no query of a block sees are skipped. Dao et al., "FlashAttention", 2022.
void attention(const QkvHeads& x, const AttentionOptions& options, AttentionResult& y);
/// Overwrites dx, which has x's dtype or the accumulate dtype; y and dout have x's dtype. If x has only a subset of the
/// keys that y and dout cover, computes the contribution of this subset to the gradient.
void attention_backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                        const AttentionOptions& options, QkvHeads& dx);
/// Copies and converts between views of the same seq, batch, heads and head_dim that do not overlap.
void copy_heads(const Heads& from, Heads& to);
/// Merges `part` into `total`, attention over disjoint keys. total.out is of part's dtype or of the accumulate dtype,
/// which avoids rounding when merging many parts. Liu, Zaharia, Abbeel, "Ring Attention", 2023.
void merge_attention(const AttentionResult& part, AttentionResult& total);
/// Adds exp(sinks[head]) to the softmax denominators of y: lse becomes log(exp(lse) + exp(sink)), and out, of the
/// operands' dtype, is scaled accordingly. sinks [heads], of out's dtype; null = 0 for every head. The gradients of q,
/// k and v are those of attention_backward() with the new y. Xiao et al., "Efficient Streaming Language Models with
/// Attention Sinks", 2023; OpenAI, "gpt-oss model card", 2025.
void attention_sink(const Tensor* sinks, AttentionResult& y);
/// Computes d_sinks = beta d_sinks + the gradient of `sinks`, given the result y of attention_sink(). d_sinks is fp32
/// (fp64) [heads].
void attention_sink_backward(const Tensor& dout, const AttentionResult& y, const Tensor& sinks, Tensor& d_sinks,
                             float beta);
/// Computes starts, int32 [s, b]: the first position of each token's chunk. Chunks have `chunk` positions and are
/// counted from the beginning of the token's document, `documents`, int32 [s, b]; null = 0.
void chunk_starts(const PositionRanges& positions, i64 chunk, const Tensor* documents, Tensor& starts);

/// Computes y[T, h] = table[token - first_row]; zeros if the token is not in the table's rows (another rank has it).
/// tokens int32 [T].
void embedding(const Tensor& tokens, const Tensor& table, i64 first_row, Tensor& y);
/// Computes dtable = beta dtable + scatter of dy, in a fixed order. dtable is fp32 (fp64).
void embedding_backward(const Tensor& dy, const Tensor& tokens, i64 first_row, Tensor& dtable, float beta);
/// Computes y[s, b, h] += the table's row at the token's position in its document.
void add_positions(Tensor& y, const Tensor& table, const Positions& positions);
/// Computes dtable = beta dtable + scatter of dy[s, b, h], in a fixed order.
void add_positions_backward(const Tensor& dy, const Positions& positions, Tensor& dtable, float beta);

/// Computes per row of logits [T, V]: the largest logit, the sum of exp(logit - largest), and the target's logit (0 if
/// targets[t] - first_row is not in [0, V); int32 targets, negative = no target). Outputs are fp32 (fp64) [T]. Only
/// columns below valid_columns count (the rest pads the vocabulary).
void cross_entropy_stats(const Tensor& logits, const Tensor& targets, i64 first_row, i64 valid_columns, Tensor& largest,
                         Tensor& sum_exp, Tensor& target_logit);
/// Rescales partial sums if the vocabulary is sharded across ranks: sum_exp *= exp(own_largest - largest), so that the
/// ranks' sums can be added. All [T].
void cross_entropy_rescale(const Tensor& own_largest, const Tensor& largest, Tensor& sum_exp);
/// Computes losses from the totals over all columns: lse = largest + log(sum_exp), stored in `largest`; loss = lse -
/// target_logit, 0 in rows without a target (targets < 0). totals, fp64 [2]: the sum of losses, in fp64 in a fixed
/// order (on the CPU row by row), and the number of targets.
void cross_entropy_losses(Tensor& largest, const Tensor& sum_exp, const Tensor& target_logit, const Tensor& targets,
                          Tensor& losses, Tensor& totals);
/// Computes in place logits[t, v] = (exp(logits - lse[t]) - [v is the target]) * scale * factor; 0 in rows without a
/// target and in padding. `factor` is fp64 [1], read when the op runs; undefined = 1. If the logits are the output of
/// soft_cap(), pass its `cap` (otherwise 0); the result is then the gradient of the input of soft_cap().
void cross_entropy_gradient(Tensor& logits, const Tensor& targets, i64 first_row, i64 valid_columns, const Tensor& lse,
                            double scale, double cap, const Tensor& factor = {});

// Routers: logits, weights and their gradients are fp32 (fp64).

/// Chooses the experts with the highest scores of each row of logits [T, E]. experts: int32 [T, k], highest score
/// first, ties by lower index; NaN ranks above all. A score is the logit, with pre_softmax the softmax over all
/// experts, or rule.score of the logit. `bias`, fp32 [E], may be null; it is added to the score for the choice only. A
/// group's score is the sum of its best rule.scores_per_group().
void choose_experts(const Tensor& logits, const Tensor* bias, const RoutingRule& rule, Tensor& experts);
/// Computes the weights [T, k] of the chosen experts: the softmax of their logits; with pre_softmax, their values in
/// the softmax over all experts; or with another score function their scores, for k > 1 divided by their sum + 1e-20.
/// Multiplied by rule.scale.
void routing_weights(const Tensor& logits, const Tensor& experts, const RoutingRule& rule, Tensor& weights);
/// Overwrites d_logits [T, E].
void routing_weights_backward(const Tensor& d_weights, const Tensor& logits, const Tensor& experts,
                              const RoutingRule& rule, Tensor& d_logits);
/// Computes the terms of load-balancing losses; fp64, overwritten, in a fixed order. sums [b, E]: sums over the rows r
/// with r % b = i of the scores of all experts: their softmax, or with another score function their scores divided by
/// their sum + 1e-20. squares [1]: the sum over rows of logsumexp(logits)^2.
void router_score_sums(const Tensor& logits, RouterScore score, Tensor& sums, Tensor& squares);
/// Loss of a router: scale times the sum over rows and experts of factors[r % b, e] score[r, e], plus z_scale times the
/// sum over rows of logsumexp(logits)^2.
struct RouterLoss {
  Tensor factors;  ///< fp64 [b, E]; undefined = 0
  double scale = 1, z_scale = 0;
  Tensor multiplier = {};  ///< fp64 [1], read when the op runs, which multiplies the loss; undefined = 1
};
/// Adds the gradient of a loss to d_logits.
void router_score_sums_backward(const Tensor& logits, RouterScore score, const RouterLoss& loss, Tensor& d_logits);

// Permutations of token rows.

/// Computes y[i] = x[rows[i]], x [T, h] and y [N, h]; zeros if rows[i] is not a row of x. rows int32 [N].
void gather_rows(const Tensor& x, const Tensor& rows, Tensor& y);
/// Computes y[t] = sum over j of weights[t, j] x[slots[t, j]], added in the order of j. x [N, h], y [T, h]; slots int32
/// [T, k], negative = none; weights [T, k] fp32 (fp64), null = all 1.
void combine_rows(const Tensor& x, const Tensor& slots, const Tensor* weights, Tensor& y);
/// Computes dx[slots[t, j]] = weights[t, j] dy[t], and d_weights[t, j] = dy[t] . x[slots[t, j]], 0 for empty slots.
/// Each row of x has at most one slot; rows of dx without a slot are unchanged. dx may alias x.
void combine_rows_backward(const Tensor& dy, const Tensor& x, const Tensor& slots, const Tensor& weights, Tensor& dx,
                           Tensor& d_weights);

/// Multiplies each group of rows by its own matrix: the next rows[g] rows of x [N, k] times weights[g], where weights
/// is [G, n, k] if transposed, otherwise [G, k, n]; y [N, n]. Dtypes as in matmul(). Groups may be empty. The result of
/// a row is bitwise independent of its index and of the size of its group.
void grouped_matmul(const Tensor& x, const Tensor& weights, std::span<const i64> rows, Tensor& y,
                    bool transpose_weights);
/// Computes dw[g] = beta dw[g] + dy_g^T x_g, dw [G, n, k], for the rows of each group of dy [N, n] and x [N, k]; an
/// empty group yields zeros if beta is 0. Dtypes as in matmul().
void grouped_weight_gradient(const Tensor& dy, const Tensor& x, std::span<const i64> rows, Tensor& dw, float beta);

/// Decides on the device whether a step updates the weights, and computes the scale of its gradient. totals as from
/// cross_entropy_losses(), summed over the global batch; squares, fp64 [1]: sum of squares of the gradient of the
/// summed loss, over all shards. scalars, fp64 [StepScalars::kCount], is overwritten. A step with a non-finite loss or
/// norm must be skipped.
void compute_update_scale(const Tensor& totals, const Tensor& squares, const StepRule& rule, Tensor& scalars);
/// Applies the AdamW update to flat fp32 vectors (Loshchilov, Hutter 2019): m, v, then master -= lr (mhat / (sqrt(vhat)
/// + eps) + weight_decay master). `model`, if not null, receives the new weights rounded to its dtype.
void adamw(Tensor& master, Tensor& m, Tensor& v, const Tensor& grad, const AdamWStep& step, Tensor* model);
/// Applies PyTorch's SGD with momentum: g += weight_decay w; momentum_buffer = momentum buffer + g; w -= lr buffer.
void sgd(Tensor& master, Tensor& momentum, const Tensor& grad, const SgdStep& step, Tensor* model);
/// Replaces the gradient by the direction of an update: g = factor grad; buffer = momentum buffer + g; grad = buffer,
/// with nesterov g + momentum buffer.
void momentum(Tensor& buffer, Tensor& grad, const MomentumStep& step);
/// Computes master -= lr (direction + weight_decay master); `model` as in adamw().
void apply_update(Tensor& master, const Tensor& direction, const ApplyUpdateStep& step, Tensor* model);

}  // namespace ops
}  // namespace mcpp
