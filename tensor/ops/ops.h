// Every operation on tensors: what it computes, checked and dispatched by device once (ops.cpp), defined once per
// backend (tensor/cpu/, tensor/cuda/, in files of the op's name). The math is done in fp32, that of fp64 tensors
// in fp64; results are rounded once. Statistics and main gradients are fp32 (fp64 for fp64 tensors).
//
// Shape letters: T tokens (s * b rows), h hidden size, f width of the MLP, V vocabulary rows held here, s sequence, b
// batch, E experts, k experts of a token. `beta` as in BLAS: 0 overwrites the output (whatever it held), 1 adds to it.
// No result depends on the number of threads.
#pragma once
#include <limits>
#include <span>
#include <vector>

#include "tensor/ops/positions.h"
#include "tensor/tensor.h"

namespace mcpp {

/// Activations inside the MLP. Gated: the input has two halves, gate and up; the output is act(gate) * up.
enum class Activation : u8 { Gelu, GeluErf, SquaredRelu, SwiGlu, GeGlu };
constexpr bool is_gated(Activation a) {
  return a == Activation::SwiGlu || a == Activation::GeGlu;
}

/// Which numbers a dropout site draws, independent of layout. Element j of the token at (sample, position) is kept when
/// word j % 4 of Philox4x32-10(key, {low and high half of sample, position, j / 4}) is at least p * 2^32; kept values
/// are multiplied by 1 / (1 - p). Row r of a [s * b, h] tensor is position positions.at(r / b) of samples[r % b],
/// and its column i is element first_column + i. tensor/ops/dropout.h has the arithmetic. `key` comes from seed, layer
/// and site.
struct Dropout {
  float p = 0;  ///< probability to drop; 0 = no dropout, nothing else is read
  u64 key = 0;
  std::vector<i64> samples;       ///< [b] global sample number of each column of the batch
  PositionRanges positions = {};  ///< of the rows of the sequence
  i64 first_column = 0;           ///< global index of column 0, when columns are split over ranks
};

/// q, k or v as [seq, batch, heads, head_dim] inside a larger tensor. Element (s, b, head, d) is at
/// offset + s * seq_stride + b * batch_stride + (head / group_size) * group_stride + (head % group_size) * head_dim +
/// d.
struct Heads {
  Tensor base;
  i64 offset = 0;
  i64 seq = 0, batch = 0, heads = 0, head_dim = 0;
  i64 group_size = 1;  ///< heads that lie side by side before the next jump of group_stride
  i64 seq_stride = 0, batch_stride = 0, group_stride = 0;
};

/// What attention works on. k and v may have fewer heads than q (grouped queries: q.heads % k.heads == 0), and may be
/// of other positions.
struct QkvHeads {
  Heads q, k, v;
};
/// View of a dense tensor [s, b, heads * head_dim], or with heads as an axis of its own.
Heads dense_heads(const Tensor& x, i64 heads);
/// Heads [first, first + count) of x: whole groups of them, or some of one group.
Heads some_heads(const Heads& x, i64 first, i64 count);
/// Heads first, first + step, ... of x, whose heads lie at equal distances.
Heads every_head(const Heads& x, i64 first, i64 step);
/// Views into a fused QKV tensor [s, b, groups, (q_per_group + 2), head_dim], Megatron's layout: per group its query
/// heads, then its key, then its value.
QkvHeads packed_heads(const Tensor& qkv);

/// A query sees a key where starts(query) <= position(key) <= position(query) and position(query) - position(key) <
/// window: the keys of its own document that are not in its future, of those the last `window`.
struct AttentionOptions {
  double softmax_scale = 1;
  double soft_cap = 0;  ///< a score x becomes soft_cap tanh(x / soft_cap); 0 = none
  Positions queries;    ///< starts: [s, b] of the queries
  PositionRanges keys;  ///< also of values
  i64 window = 0;       ///< how many positions a query sees, its own included; 0 = all
  Dropout dropout;      ///< of the probabilities; element index is (query head, query position, key position)
};

/// Attention over some keys. What different keys gave for the same queries can be merged.
struct AttentionResult {
  /// [s, b, heads * head_dim], of the queries' type or of the wide one, in which parts lose nothing; zero for a query
  /// that sees no key.
  Tensor out;
  Tensor lse;  ///< [b, heads, s] (fp32 / fp64): log of the softmax's denominator; -infinity where no key is seen
};

/// How a norm scales rows.
struct NormRule {
  double eps = 1e-5;
  double weight_offset = 0;  ///< added to every weight: 1 where these say how far they are from 1
  /// RMSNorm of rows whose columns are cut over ranks: [T] fp32 (fp64), row_dots() of x with itself, summed over the
  /// ranks, and the columns of all. Undefined: rows are whole.
  Tensor squares = {};
  i64 all_columns = 0;

  NormRule(double epsilon) : eps(epsilon) {}  // a number is a rule of itself
};

/// What the backward pass of a norm needs of its forward pass.
struct NormForward {
  Tensor x, w;
  Tensor mean, rstd;  ///< RMSNorm has no mean
  double weight_offset = 0;
  /// Where columns are cut over ranks: row_dots() of dy, times the weights, with x, summed over the ranks.
  Tensor dots = {};
  i64 all_columns = 0;
};

/// What it gives. dx is overwritten, or added to when `add_to_dx`: then it already holds the gradient of the residual
/// branch.
struct NormGradients {
  Tensor dx;
  bool add_to_dx = false;
  Tensor dw;
  float beta_dw = 0;
  Tensor db = {};  ///< RMSNorm has no bias
  float beta_db = 0;
};

/// How a router scores experts.
enum class RouterScore : u8 { Softmax, Sigmoid };

/// Which experts take a token and how much each counts, as Megatron Core's topk_routing_with_score_function has it.
struct RoutingRule {
  i64 topk = 2;
  RouterScore score = RouterScore::Softmax;
  bool pre_softmax = false;        ///< softmax over all experts; otherwise over those chosen
  i64 groups = 0, group_topk = 0;  ///< experts are chosen from the group_topk best of so many groups; 0 = no groups
  double scale = 1;                ///< multiplies the weights
};

struct AdamWStep {
  double lr = 0, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 0;
  i64 step = 1;           ///< 1 for the first update: bias correction uses beta^step
  double grad_scale = 1;  ///< multiplies the gradient (normalisation times clipping)
  /// fp64 [1], multiplies grad_scale; when it is not finite nothing is changed. Undefined = 1. For what the host does
  /// not know yet.
  Tensor factor = {};
};

struct SgdStep {
  double lr = 0, momentum = 0, weight_decay = 0;
  double grad_scale = 1;
  Tensor factor = {};  ///< as AdamWStep's
};

struct MomentumStep {
  double momentum = 0;
  bool nesterov = false;
  Tensor factor = {};  ///< as AdamWStep's
};

struct DescentStep {
  double lr = 0, weight_decay = 0;
  Tensor factor = {};  ///< nothing is changed when it is not finite; it does not multiply
};

/// How decide_update() decides about the update of the weights.
struct StepRule {
  double grad_scale = 1;    ///< multiplies the gradient, beside 1 / number of targets: 1 / loss scale
  double clip_grad = 0;     ///< the largest norm of the gradient; 0 = any. By clip_grad / (norm + 1e-6), as Megatron-LM
  bool rounds_norm = true;  ///< to fp32, which hides that layouts add up squares in another order
  /// A finite step above one of these is a spike.
  double most_loss = std::numeric_limits<double>::infinity();
  double most_grad_norm = std::numeric_limits<double>::infinity();
  bool skips_spikes = false;
};

/// What a step is, worst last.
enum class StepVerdict : u8 { Fine, Spike, NotFinite };

/// Where decide_update() puts what; fp64, never NaN. All ranks follow the largest of each over all ranks: normally they
/// are the same, but one whose memory fails may find what others do not.
struct StepNumbers {
  static constexpr i64 kLoss = 0;      ///< mean over the targets; infinity when it is not finite
  static constexpr i64 kTargets = 1;   ///< their number
  static constexpr i64 kGradNorm = 2;  ///< before clipping; infinity when it is not finite
  static constexpr i64 kFactor = 3;    ///< for the update: of normalisation and clipping; infinity = no update
  static constexpr i64 kVerdict = 4;   ///< a StepVerdict
  static constexpr i64 kCount = 5;
};

namespace ops {

struct MatmulOptions {
  bool transpose_a = false;
  bool transpose_b = false;
  float beta = 0;
};

/// c[M, N] = op(a) op(b) + beta c. op(a) is [M, K], op(b) is [K, N]; matrices (use as_matrix()). Types: all fp32, all
/// fp64, or a and b of a narrow type (bf16, fp16) with c of that type or fp32. Sums in fp32 or better.
void matmul(const Tensor& a, const Tensor& b, Tensor& c, const MatmulOptions& options = {});

void fill_zero(Tensor& x);
/// dst = src, converted; same number of elements, any two floating-point types, or the same type.
void copy(const Tensor& src, Tensor& dst);
/// x *= factor.
void scale(Tensor& x, double factor);
/// x = cap tanh(x / cap).
void soft_cap(Tensor& x, double cap);
/// y += x, of the same type.
void add_to(const Tensor& x, Tensor& y);
/// Sum of squares, in fp64 and in a fixed order. Infinite or NaN when x holds such a number or overflows.
double sum_of_squares(const Tensor& x);
/// sum, fp64 [1], += that of x: the host does not wait for it.
void add_sum_of_squares(const Tensor& x, Tensor& sum);
/// x /= sqrt(squares) + eps, with squares, fp64 [1], the sum of squares of x or of what x is a part of.
void normalize(Tensor& x, const Tensor& squares, double eps);
/// db[n] = beta db + sum over rows of dy[T, n]: the gradient of a bias. db is fp32 (fp64).
void column_sum(const Tensor& dy, Tensor& db, float beta);
/// x[T, n] += bias[n].
void add_bias(Tensor& x, const Tensor& bias);

/// y[T, h] = (x - mean) rstd w + b over each row; mean, rstd [T] are kept for backward. Ba, Kiros, Hinton 2016.
void layer_norm(const Tensor& x, const Tensor& w, const Tensor& b, const NormRule& rule, Tensor& y, Tensor& mean,
                Tensor& rstd);
void layer_norm_backward(const Tensor& dy, const NormForward& y, NormGradients& gradients);
/// y[T, h] = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps). Zhang, Sennrich 2019.
void rms_norm(const Tensor& x, const Tensor& w, const NormRule& rule, Tensor& y, Tensor& rstd);
void rms_norm_backward(const Tensor& dy, const NormForward& y, NormGradients& gradients);
/// dots[t] = sum over columns of a[t] b[t], times (w + weight_offset) where w, which may be null, is given. dots is
/// fp32 (fp64) [T].
void row_dots(const Tensor& a, const Tensor& b, const Tensor* w, double weight_offset, Tensor& dots);

/// y = act(x + bias). x [T, f] and y [T, f]; gated: x [T, 2f] = gate | up, y [T, f]. `bias` (of x's width) may be null.
void activation(Activation a, const Tensor& x, const Tensor* bias, Tensor& y);
/// dx from dy and forward's x (and bias); dx may be x itself.
void activation_backward(Activation a, const Tensor& dy, const Tensor& x, const Tensor* bias, Tensor& dx);

/// y = residual + dropout(x + bias), all [T, h] with T = s * b rows, sequence first; bias [h] may be null; y may be x
/// or residual.
void bias_dropout_add(const Tensor& x, const Tensor* bias, const Tensor& residual, const Dropout& dropout, Tensor& y);
/// y = dropout(x): also its own backward. [T, h]; y may be x.
void dropout(const Tensor& x, const Dropout& dropout, Tensor& y);
/// y = x times factors that lie evenly in [1 - p, 1 + p), made from the words that dropout would look at: also its own
/// backward. [T, h]; y may be x. Fedus et al., "Switch Transformers", 2021.
void jitter(const Tensor& x, const Dropout& draws, Tensor& y);

/// magnitude times cos and sin of position * frequencies[i], as [positions, frequencies], computed in fp64. Su et al.,
/// "RoFormer", 2021.
void rope_table(const std::vector<double>& frequencies, double magnitude, Tensor& cos, Tensor& sin);
/// Rotates the first 2 * cos.dim(1) channels of every head in place (rotate-half: channel i pairs with i + dim / 2).
/// The row of the table is the token's position in its document. `inverse` rotates back: the backward pass, also where
/// the table has a magnitude.
void rope(Heads& x, const Tensor& cos, const Tensor& sin, const Positions& positions, bool inverse);

/// y.out = softmax(scale q k^T) v over the keys that each query sees. Never stores s x s; blocks of keys that no query
/// of a block sees cost nothing. Dao et al., "FlashAttention", 2022.
void attention(const QkvHeads& x, const AttentionOptions& options, AttentionResult& y);
/// dx, of x's type or of the wide one, is overwritten. Where x has a part of the keys, and y and dout, of x's type, are
/// those of all: that part's share of the gradient.
void attention_backward(const Tensor& dout, const QkvHeads& x, const AttentionResult& y,
                        const AttentionOptions& options, QkvHeads& dx);
/// to = from, converted, between views of the same seq, batch, heads and head_dim that do not overlap.
void copy_heads(const Heads& from, Heads& to);
/// total = attention over its keys and those of `part`, which are others. total.out is of part's type or, so that many
/// parts lose nothing, of the wide one. Liu, Zaharia, Abbeel, "Ring Attention", 2023.
void merge_attention(const AttentionResult& part, AttentionResult& total);

/// y[T, h] = table[token - first_row]; zeros where the token is not in the table's rows (another rank has it). tokens
/// int32 [T].
void embedding(const Tensor& tokens, const Tensor& table, i64 first_row, Tensor& y);
/// dtable = beta dtable + scatter of dy, in fixed order. dtable is fp32 (fp64).
void embedding_backward(const Tensor& dy, const Tensor& tokens, i64 first_row, Tensor& dtable, float beta);
/// y[s, b, h] += the row of the table at the token's position in its document.
void add_positions(Tensor& y, const Tensor& table, const Positions& positions);
/// dtable = beta dtable + scatter of dy[s, b, h], in fixed order.
void add_positions_backward(const Tensor& dy, const Positions& positions, Tensor& dtable, float beta);

/// Per row of logits [T, V]: the largest logit, sum of exp(logit - largest), and the logit of the target (0 when
/// targets[t] - first_row is not in [0, V); int32 targets, negative = no target). fp32 (fp64) [T]. Only columns below
/// valid_columns count (the rest pads the vocabulary).
void cross_entropy_stats(const Tensor& logits, const Tensor& targets, i64 first_row, i64 valid_columns, Tensor& largest,
                         Tensor& sum_exp, Tensor& target_logit);
/// Where other ranks hold the rest of the vocabulary: sum_exp *= exp(own_largest - largest), which makes the sum of
/// this rank's columns one that adds up with the others'. All [T].
void cross_entropy_rescale(const Tensor& own_largest, const Tensor& largest, Tensor& sum_exp);
/// From what all columns have together: lse = largest + log(sum_exp), in the place of `largest`; loss = lse -
/// target_logit, 0 in rows without a target (targets < 0). totals, fp64 [2] = the sum of losses, in fp64 in a fixed
/// order (on the CPU row by row), and the number of targets.
void cross_entropy_losses(Tensor& largest, const Tensor& sum_exp, const Tensor& target_logit, const Tensor& targets,
                          Tensor& losses, Tensor& totals);
/// In place: logits[t, v] = (exp(logits - lse[t]) - [v is the target]) * scale; 0 in rows without a target and in
/// padding. Logits that went through soft_cap() are given with their `cap` (0: they did not), and the gradient is that
/// of what went in.
void cross_entropy_gradient(Tensor& logits, const Tensor& targets, i64 first_row, i64 valid_columns, const Tensor& lse,
                            double scale, double cap);

// Routers: logits, weights and their gradients are fp32 (fp64).

/// experts int32 [T, k] = for each row of logits [T, E] those of the highest scores, the highest first, of equal ones
/// the lower number; NaN counts as higher than all. A score is the logit, with pre_softmax the softmax over all
/// experts, or the sigmoid; `bias`, fp32 [E], which may be null, is added to it for the choice alone. A group's score
/// is the sum of its best topk / group_topk.
void choose_experts(const Tensor& logits, const Tensor* bias, const RoutingRule& rule, Tensor& experts);
/// weights [T, k] of the experts chosen: the softmax of their logits; with pre_softmax, their part of the softmax over
/// all; or their sigmoids, where k > 1 divided by the sum of these + 1e-20. Times rule.scale.
void expert_weights(const Tensor& logits, const Tensor& experts, const RoutingRule& rule, Tensor& weights);
/// d_logits [T, E] is overwritten.
void expert_weights_backward(const Tensor& d_weights, const Tensor& logits, const Tensor& experts,
                             const RoutingRule& rule, Tensor& d_logits);
/// What losses that balance experts are made of; fp64, overwritten, in a fixed order. sums [b, E]: over the rows r with
/// r % b = i, of the scores of all experts: their softmax, or their sigmoids divided by the sum of these + 1e-20.
/// squares [1]: the sum over rows of logsumexp(logits)^2.
void router_score_sums(const Tensor& logits, RouterScore score, Tensor& sums, Tensor& squares);
/// d_logits += the gradient of the sum over rows and experts of factors[r % b, e] score[r, e], factors being fp64
/// [b, E], plus z_factor times the sum over rows of logsumexp(logits)^2.
void router_score_sums_backward(const Tensor& logits, RouterScore score, const Tensor& factors, double z_factor,
                                Tensor& d_logits);

// Rows of tokens in another order.

/// y[i] = x[rows[i]], x [T, h] and y [N, h]; zeros where rows[i] is not a row of x. rows int32 [N].
void gather_rows(const Tensor& x, const Tensor& rows, Tensor& y);
/// y[t] = sum over j of weights[t, j] x[slots[t, j]], added in the order of j. x [N, h], y [T, h]; slots int32 [T, k],
/// negative = none; weights [T, k] fp32 (fp64), null = all 1.
void combine_rows(const Tensor& x, const Tensor& slots, const Tensor* weights, Tensor& y);
/// dx[slots[t, j]] = weights[t, j] dy[t], and d_weights[t, j] = dy[t] . x[slots[t, j]], 0 where there is none. No row
/// of x may have two slots; a row of dx that has none is left alone. dx may be x.
void combine_rows_backward(const Tensor& dy, const Tensor& x, const Tensor& slots, const Tensor& weights, Tensor& dx,
                           Tensor& d_weights);

/// Products of groups of rows with a matrix each: rows[g] of x [N, k], one group after another, times weights[g]. Those
/// are [G, n, k] and transposed, or [G, k, n] and taken as they are; y [N, n]. Types as of matmul(). Groups may be
/// empty. No bit of a row's result depends on how many others its group has, nor on where the row lies.
void grouped_matmul(const Tensor& x, const Tensor& weights, std::span<const i64> rows, Tensor& y,
                    bool transpose_weights);
/// dw[g] = beta dw[g] + dy_g^T x_g, dw [G, n, k], for the rows of each group of dy [N, n] and x [N, k]; with beta 0 an
/// empty group gives zeros. Types as of matmul().
void grouped_weight_gradient(const Tensor& dy, const Tensor& x, std::span<const i64> rows, Tensor& dw, float beta);

/// Whether a step's weights are updated, and how its gradient is scaled, without the host. totals as of
/// cross_entropy_losses(), summed over the global batch; squares, fp64 [1]: of the gradient of the summed loss, over
/// all its parts. numbers, fp64 [StepNumbers::kCount], is overwritten; a step whose loss or norm is not finite must not
/// be taken.
void decide_update(const Tensor& totals, const Tensor& squares, const StepRule& rule, Tensor& numbers);
/// One AdamW update of flat fp32 vectors (Loshchilov, Hutter 2019): m, v, then master -= lr (mhat / (sqrt(vhat) + eps)
/// + weight_decay master). `model`, when not null, receives the new weights rounded to its type.
void adamw(Tensor& master, Tensor& m, Tensor& v, const Tensor& grad, const AdamWStep& step, Tensor* model);
/// PyTorch's SGD with momentum: g += weight_decay w; momentum_buffer = momentum buffer + g; w -= lr buffer.
void sgd(Tensor& master, Tensor& momentum, const Tensor& grad, const SgdStep& step, Tensor* model);
/// The direction of an update, in the place of the gradient: g = factor grad; buffer = momentum buffer + g; grad =
/// buffer, with nesterov g + momentum buffer.
void momentum(Tensor& buffer, Tensor& grad, const MomentumStep& step);
/// master -= lr (direction + weight_decay master); `model` as in adamw().
void descend(Tensor& master, const Tensor& direction, const DescentStep& step, Tensor* model);

}  // namespace ops
}  // namespace mcpp
