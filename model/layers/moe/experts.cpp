#include "model/layers/moe/experts.h"

#include <optional>

#include "model/layers/mlp.h"
#include "tensor/ops/low_precision/accumulate_copy.h"
#include "tensor/ops/routing_tables.h"

namespace mcpp {
namespace {

constexpr std::size_t kExpertAxis = 0;

/// Returns the box of this rank's experts, sharded along `ffn_axis` unless `global` does not have this axis.
Box shard_box(const Shape& global, std::size_t ffn_axis, const ExpertParallel& parallel) {
  Box box{global, Shape(global.size(), 0), global};
  const auto shard_axis = [&](std::size_t axis, int parts, int part) {
    MCPP_CHECK(global[axis] % parts == 0, "axis ", axis, " of ", global, " is not divisible by ", parts, " ranks");
    box.shape[axis] = global[axis] / parts;
    box.offset[axis] = box.shape[axis] * part;
  };
  shard_axis(kExpertAxis, parallel.ep, parallel.ep_rank);
  if (ffn_axis < global.size()) shard_axis(ffn_axis, parallel.tp, parallel.tp_rank);
  return box;
}

/// Returns one box per matrix, which spans the last two axes.
std::vector<Box> expert_matrices(const Shape& global) {
  std::vector<Box> matrices;
  for (i64 expert = 0; expert < global[0]; ++expert) {
    Box box = slab(global, kExpertAxis, expert, 1);
    for (i64 index = 0; index < (global.size() == 4 ? global[1] : 1); ++index) {
      if (global.size() == 4) box.offset[1] = index, box.shape[1] = 1;
      matrices.push_back(box);
    }
  }
  return matrices;
}

/// Returns the width of an expert's input and output.
i64 width_of(const MoeSpec& spec, const ModelConfig& c) {
  return spec.latent_size > 0 ? spec.latent_size : c.hidden_size;
}

Shape fc1_shape(const MoeSpec& spec, const ModelConfig& c) {
  return c.is_gated() ? Shape{spec.num_experts, 2, spec.ffn_hidden_size, width_of(spec, c)}
                      : Shape{spec.num_experts, spec.ffn_hidden_size, width_of(spec, c)};
}
Shape fc2_shape(const MoeSpec& spec, const ModelConfig& c) {
  return {spec.num_experts, width_of(spec, c), spec.ffn_hidden_size};
}

/// Returns a view [experts, out, in].
Tensor matrices(const Tensor& weight) {
  return weight.view({weight.dim(0), -1, weight.dim(-1)});
}

/// Calls f with the index of each expert and its rows of x, even if there are none.
template <class F>
void for_each_expert(const Tensor& x, std::span<const i64> rows, F&& f) {
  const i64 width = x.dim(-1);
  i64 first = 0;
  for (std::size_t expert = 0; expert < rows.size(); ++expert) {
    f(static_cast<i64>(expert), x.flat(first * width, rows[expert] * width).view({rows[expert], width}));
    first += rows[expert];
  }
}

/// Encodings of the rows that a recipe multiplies in forward and in the gradient of inputs.
RowEncoding forward_encoding(const PassRecipes& recipe) {
  return {.block = block_size(recipe.forward)};
}
RowEncoding dgrad_encoding(const PassRecipes& recipe) {
  return {.block = block_size(recipe.dgrad), .format = recipe.gradients};
}

bool is_encoded(const Tensor& rows) {
  return rows.dtype() == DType::I32;
}

/// Returns rows [M, columns], decoded to memory for kernels if they are encoded.
Tensor decoded(const Tensor& rows, const RowEncoding& encoding, i64 columns) {
  if (!is_encoded(rows)) return rows;
  Tensor y = Tensor::empty({rows.dim(0), columns}, DType::BF16, rows.device(), MemoryClass::Workspace);
  ops::decode_rows(rows, encoding, y);
  return y;
}

/// Returns rows [M, columns] rounded to blocks, in memory for kernels.
Tensor rounded(const Tensor& rows, const RowEncoding& encoding, i64 columns) {
  if (is_encoded(rows)) return decoded(rows, encoding, columns);
  Tensor y = Tensor::empty(rows.shape(), rows.dtype(), rows.device(), MemoryClass::Workspace);
  ops::round_to_fp8(rows, {.format = encoding.format, .block = {1, encoding.block}}, y);
  return y;
}

/// Returns the weights [experts, out, in], each rounded to blocks.
Tensor rounded_matrices(const Tensor& weights, const Fp8Scale& scale) {
  Tensor y = Tensor::empty(weights.shape(), weights.dtype(), weights.device(), MemoryClass::Workspace);
  const i64 elements = weights.dim(1) * weights.dim(2);
  const auto matrix = [&](const Tensor& of, i64 expert) {
    return of.flat(expert * elements, elements).view({weights.dim(1), weights.dim(2)});
  };
  for (i64 expert = 0; expert < weights.dim(0); ++expert) {
    Tensor to = matrix(y, expert);
    ops::round_to_fp8(matrix(weights, expert), scale, to);
  }
  return y;
}

/// Computes y = x W^T per expert for weights [experts, out, in]. x may be encoded.
void multiply(const PassRecipes& recipe, const Tensor& x, const Tensor& weights, std::span<const i64> rows, Tensor& y) {
  const GemmRecipe blocks = recipe.forward;
  if (blocks == GemmRecipe::Bf16) return ops::grouped_matmul(x, weights, rows, y, /*transpose_weights=*/true);
  const Tensor a = rounded(x, forward_encoding(recipe), weights.dim(2));
  const Tensor b = rounded_matrices(weights, {.block = weight_blocks(blocks, Contraction::Columns)});
  ops::grouped_matmul(a, b, rows, y, /*transpose_weights=*/true);
}

/// Computes dx = dy W per expert. dy may be encoded.
void multiply_backward(const PassRecipes& recipe, const Tensor& dy, const Tensor& weights, std::span<const i64> rows,
                       Tensor& dx) {
  const GemmRecipe blocks = recipe.dgrad;
  if (blocks == GemmRecipe::Bf16) return ops::grouped_matmul(dy, weights, rows, dx, /*transpose_weights=*/false);
  const Tensor a = rounded(dy, dgrad_encoding(recipe), weights.dim(1));
  const Tensor b = rounded_matrices(weights, {.block = weight_blocks(blocks, Contraction::Rows)});
  ops::grouped_matmul(a, b, rows, dx, /*transpose_weights=*/false);
}

void add_biases(const Param& bias, std::span<const i64> rows, Tensor& x) {
  for_each_expert(x, rows, [&](i64 expert, Tensor part) {
    if (part.numel() > 0) ops::add_bias(part, bias.value.flat(expert * x.dim(-1), x.dim(-1)));
  });
}

void add_bias_gradients(Param& bias, const Tensor& dy, std::span<const i64> rows) {
  bias.add_grad([&](const Tensor& sums, float beta) {
    for_each_expert(dy, rows, [&](i64 expert, const Tensor& part) {
      Tensor db = sums.flat(expert * dy.dim(-1), dy.dim(-1));
      if (part.numel() > 0)
        ops::column_sum(part, db, beta);
      else if (beta == 0)
        ops::fill_zero(db);
    });
  });
}

}  // namespace

/// `shape` is the shape of the weight. A bias has all of its axes except the last.
Experts::Linear Experts::make_linear(const std::string& name, const Shape& shape, std::size_t ffn_axis,
                                     double init_std) const {
  const PassRecipes* recipe = context_.fp8.find(name);
  Linear result{.weight = Param(name + ".weight", shard_box(shape, ffn_axis, context_.experts), Init::Normal, init_std),
                .bias = nullptr,
                .recipe = recipe ? *recipe : PassRecipes::of(GemmRecipe::Bf16)};
  const auto is_supported = [](GemmRecipe r) { return r == GemmRecipe::Bf16 || has_blocks(r); };
  MCPP_CHECK(is_supported(result.recipe.forward) && is_supported(result.recipe.dgrad) &&
                 !result.recipe.uses(GemmRecipe::Nvfp4) && result.recipe.wgrad == GemmRecipe::Bf16,
             name, ": experts support fp8 with blocks, and bf16 weight gradients");
  set_fp8_rounding(result.weight, name, result.recipe, /*matrices=*/result.weight.box.shape[0]);
  result.weight.placement.grid = GridKind::Expert;
  result.weight.matrices = expert_matrices(shape);
  if (!context_.config.mlp_bias()) return result;
  const Shape outputs(shape.begin(), shape.end() - 1);
  result.bias = std::make_unique<Param>(name + ".bias", shard_box(outputs, ffn_axis, context_.experts), Init::Zeros);
  result.bias->placement.grid = GridKind::Expert;
  if (ffn_axis == outputs.size()) result.bias->placement.tp = {gradient_spread(ActivationPlacement::Partial)};
  return result;
}

Experts::Experts(const std::string& name, i64 layer, const MoeSpec& spec, StoredRef<ModelContext> context)
    : context_(context),
      activation_(activation_rule(context_.config)),
      fc1_(make_linear(name + ".linear_fc1", fc1_shape(spec, context_.config), context_.config.is_gated() ? 2 : 1,
                       context_.config.init_method_std)),
      fc2_(make_linear(name + ".linear_fc2", fc2_shape(spec, context_.config), 2, context_.output_init_std(layer))) {}

Tensor Experts::activate(const Tensor& up) const {
  Tensor y = Tensor::like(up, {up.dim(0), fc2_.weight.box.shape[2]});
  ops::activation(activation_, up, nullptr, y);
  return y;
}

RowEncoding Experts::token_encoding() const {
  return context_.fp8.moe_fp8_dispatch ? forward_encoding(fc1_.recipe) : RowEncoding();
}

RowEncoding Experts::gradient_encoding() const {
  return context_.fp8.moe_fp8_dispatch ? dgrad_encoding(fc2_.recipe) : RowEncoding();
}

Tensor Experts::forward(const Tensor& x, std::span<const i64> rows, MicrobatchContext& microbatch) {
  microbatch.save(this, x);
  const Tensor fc1 = matrices(fc1_.weight.value);
  Tensor up = Tensor::empty({x.dim(0), fc1.dim(1)}, fc1.dtype(), x.device());
  multiply(fc1_.recipe, x, fc1, rows, up);
  if (fc1_.bias) add_biases(*fc1_.bias, rows, up);
  microbatch.save(this, up);
  const Tensor activated = activate(up);
  std::optional<MicrobatchContext::DiscardScope> discard;
  if (context_.recompute.moe_act)
    discard.emplace(microbatch, activated, std::vector{up},
                    [this](std::span<const Tensor> saved) { return activate(saved[0]); });
  microbatch.save(this, activated);
  Tensor y = Tensor::like(up, {x.dim(0), width()});
  multiply(fc2_.recipe, activated, fc2_.weight.value, rows, y);
  if (fc2_.bias && context_.experts.tp_rank == 0) add_biases(*fc2_.bias, rows, y);
  return y;
}

void Experts::add_weight_gradient(Linear& linear, const Tensor& dy, const Tensor& x, std::span<const i64> rows,
                                  MicrobatchContext& microbatch) {
  microbatch.run_or_delay_wgrad([&linear, dy, x, columns = width(), rows = std::vector(rows.begin(), rows.end())] {
    const Tensor gradient = decoded(dy, dgrad_encoding(linear.recipe), columns),
                 input = decoded(x, forward_encoding(linear.recipe), columns);
    linear.weight.add_grad([&](const Tensor& sum, float beta) {
      Tensor dw = matrices(sum);
      ops::grouped_weight_gradient(gradient, input, rows, dw, beta);
    });
    if (linear.bias) add_bias_gradients(*linear.bias, gradient, rows);
  });
}

Tensor Experts::backward(const Tensor& dy, std::span<const i64> rows, MicrobatchContext& microbatch) {
  const Tensor activated = microbatch.take(this);
  Tensor up = microbatch.take(this);
  const Tensor x = microbatch.take(this);
  Tensor d_activated = Tensor::like(activated);
  multiply_backward(fc2_.recipe, dy, fc2_.weight.value, rows, d_activated);
  add_weight_gradient(fc2_, dy, activated, rows, microbatch);
  Tensor d_up = up;  // overwrites its input, which is no longer needed
  ops::activation_backward(activation_, d_activated, up, nullptr, d_up);
  Tensor dx = Tensor::like(d_up, {x.dim(0), width()});
  multiply_backward(fc1_.recipe, d_up, matrices(fc1_.weight.value), rows, dx);
  add_weight_gradient(fc1_, d_up, x, rows, microbatch);
  return dx;
}

void Experts::visit(const ParamVisitor& f) {
  for (Linear* linear : {&fc1_, &fc2_}) {
    f(linear->weight);
    if (linear->bias) f(*linear->bias);
  }
}

namespace {

/// Returns the row indices 0, 1, ..., rows - 1 as int32 [rows, 1].
Tensor row_numbers(i64 rows, Device& device) {
  Tensor numbers = Tensor::empty({rows, 1}, DType::I32, device);
  ops::fill_progression(numbers, {.first = 0, .row_step = 1});
  return numbers;
}

/// The gate is computed as the routing weight of a single expert.
const RoutingRule kGate{.topk = 1, .score = RouterScore::Sigmoid};

/// Returns expert 0 for each token, int32 [T, 1].
Tensor only_expert(i64 tokens, Device& device) {
  return Tensor::zeros({tokens, 1}, DType::I32, device);
}

}  // namespace

Tensor scale_rows(const Tensor& x, const Tensor& weights) {
  Tensor y = Tensor::like(x);
  ops::combine_rows(x, row_numbers(x.dim(0), x.device()), &weights, y);
  return y;
}

void scale_rows_backward(const Tensor& dy, const Tensor& x, const Tensor& weights, Tensor& dx, Tensor& d_weights) {
  ops::combine_rows_backward(dy, x, row_numbers(x.dim(0), x.device()), weights, dx, d_weights);
}

SharedExpert::SharedExpert(const std::string& name, i64 layer, i64 ffn, StoredRef<ModelContext> context)
    : mlp_(name, layer, context, ffn) {
  if (!context.get().config.moe.shared_expert_gate) return;
  gate_ = std::make_unique<Fp32Linear>(name + ".gate", context, 1);
  context.get().place_in_stream(gate_->weight());
}

Tensor SharedExpert::forward(const Tensor& x, MicrobatchContext& microbatch) {
  Tensor y = mlp_.forward(x, microbatch);
  if (mlp_.bias()) ops::add_bias(y, *mlp_.bias());
  if (!gate_) return y;
  const Tensor logits = gate_->forward(x.as_matrix());
  for (const Tensor& t : {x, logits, y}) microbatch.save(this, t);
  Tensor weights = Tensor::like(logits);
  ops::routing_weights(logits, only_expert(logits.dim(0), x.device()), kGate, weights);
  return scale_rows(y.as_matrix(), weights).view(y.shape());
}

Tensor SharedExpert::backward(const Tensor& dy, MicrobatchContext& microbatch) {
  if (!gate_) return mlp_.backward(dy, microbatch);
  const Tensor y = microbatch.take(this), logits = microbatch.take(this), x = microbatch.take(this);
  const Tensor experts = only_expert(logits.dim(0), x.device());
  Tensor weights = Tensor::like(logits), d_weights = Tensor::like(logits), d_logits = Tensor::like(logits);
  ops::routing_weights(logits, experts, kGate, weights);
  Tensor d_y = Tensor::like(y);
  Tensor d_rows = d_y.as_matrix();
  scale_rows_backward(dy.as_matrix(), y.as_matrix(), weights, d_rows, d_weights);
  ops::routing_weights_backward(d_weights, logits, experts, kGate, d_logits);
  gate_->weight_gradient(
      d_logits, [x] { return x.as_matrix(); }, microbatch);
  Tensor dx = mlp_.backward(d_y, microbatch);
  Tensor dx_rows = dx.as_matrix();
  add_converted(gate_->input_gradient(d_logits), dx_rows);
  return dx;
}

ActivationPlacement SharedExpert::output_placement(ActivationPlacement x) const {
  if (gate_) check_gradient_spread(gate_->weight(), x);
  return mlp_.output_placement(x);
}

void SharedExpert::visit(const ParamVisitor& f) {
  mlp_.visit(f);
  if (gate_) f(gate_->weight());
}

}  // namespace mcpp
