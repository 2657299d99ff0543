#include "model/layers/experts.h"

#include <optional>

#include "model/layers/mlp.h"

namespace mcpp {
namespace {

constexpr std::size_t kExpertAxis = 0;

/// Of the experts, and along `ffn_axis` of their width, what this rank has.
Box box_of(const Shape& global, std::size_t ffn_axis, const ExpertParallel& parallel) {
  Box box{global, Shape(global.size(), 0), global};
  const auto cut = [&](std::size_t axis, int parts, int part) {
    MCPP_CHECK(global[axis] % parts == 0, "axis ", axis, " of ", global, " over ", parts, " ranks");
    box.shape[axis] = global[axis] / parts;
    box.offset[axis] = box.shape[axis] * part;
  };
  cut(kExpertAxis, parallel.ep, parallel.ep_rank);
  cut(ffn_axis, parallel.tp, parallel.tp_rank);
  return box;
}

/// Each matrix of each expert: all of the last two axes.
std::vector<Box> matrices_of(const Shape& global) {
  std::vector<Box> matrices;
  for (i64 expert = 0; expert < global[0]; ++expert) {
    Box box = slab(global, kExpertAxis, expert, 1);
    for (i64 half = 0; half < (global.size() == 4 ? global[1] : 1); ++half) {
      if (global.size() == 4) box.offset[1] = half, box.shape[1] = 1;
      matrices.push_back(box);
    }
  }
  return matrices;
}

Shape fc1_shape(const ModelConfig& c) {
  return c.gated() ? Shape{c.moe.num_experts, 2, c.moe_ffn(), c.hidden_size}
                   : Shape{c.moe.num_experts, c.moe_ffn(), c.hidden_size};
}
Shape fc2_shape(const ModelConfig& c) {
  return {c.moe.num_experts, c.hidden_size, c.moe_ffn()};
}

/// [experts, out, in].
Tensor matrices(const Tensor& weight) {
  return weight.view({weight.dim(0), -1, weight.dim(-1)});
}

}  // namespace

Experts::Experts(const std::string& name, KeptRef<ModelContext> context)
    : context_(context),
      activation_(activation_of(context_.config.activation_func)),
      fc1_(name + ".linear_fc1.weight",
           box_of(fc1_shape(context_.config), context_.config.gated() ? 2 : 1, context_.experts), Init::Normal,
           context_.config.init_method_std),
      fc2_(name + ".linear_fc2.weight", box_of(fc2_shape(context_.config), 2, context_.experts), Init::Normal,
           context_.output_init_std()) {
  for (Param* weight : {&fc1_, &fc2_}) {
    weight->placement.grid = GridKind::Expert;
    weight->matrices = matrices_of(weight->box.global);
  }
}

Tensor Experts::activate(const Tensor& up) const {
  Tensor y = Tensor::like(up, {up.dim(0), fc2_.box.shape[2]});
  ops::activation(activation_, up, nullptr, y);
  return y;
}

Tensor Experts::forward(const Tensor& x, std::span<const i64> rows, Pass& pass) {
  pass.save(this, x);
  const Tensor fc1 = matrices(fc1_.value);
  Tensor up = Tensor::like(x, {x.dim(0), fc1.dim(1)});
  ops::grouped_matmul(x, fc1, rows, up, /*transpose_weights=*/true);
  pass.save(this, up);
  const Tensor activated = activate(up);
  std::optional<Pass::DiscardScope> discard;
  if (context_.recompute.moe_act)
    discard.emplace(pass, activated, std::vector{up},
                    [this](std::span<const Tensor> kept) { return activate(kept[0]); });
  pass.save(this, activated);
  Tensor y = Tensor::like(x);
  ops::grouped_matmul(activated, fc2_.value, rows, y, /*transpose_weights=*/true);
  return y;
}

void Experts::add_weight_gradient(Param& weight, const Tensor& dy, const Tensor& x, std::span<const i64> rows,
                                  Pass& pass) {
  pass.run_or_defer([&weight, dy, x, rows = std::vector(rows.begin(), rows.end())] {
    weight.add_grad([&](const Tensor& sum, float beta) {
      Tensor dw = matrices(sum);
      ops::grouped_weight_gradient(dy, x, rows, dw, beta);
    });
  });
}

Tensor Experts::backward(const Tensor& dy, std::span<const i64> rows, Pass& pass) {
  const Tensor activated = pass.take(this);
  Tensor up = pass.take(this);
  const Tensor x = pass.take(this);
  Tensor d_activated = Tensor::like(activated);
  ops::grouped_matmul(dy, fc2_.value, rows, d_activated, /*transpose_weights=*/false);
  add_weight_gradient(fc2_, dy, activated, rows, pass);
  Tensor d_up = up;  // written over its own input, which is not needed any more
  ops::activation_backward(activation_, d_activated, up, nullptr, d_up);
  Tensor dx = Tensor::like(x);
  ops::grouped_matmul(d_up, matrices(fc1_.value), rows, dx, /*transpose_weights=*/false);
  add_weight_gradient(fc1_, d_up, x, rows, pass);
  return dx;
}

void Experts::visit(const ParamVisitor& f) {
  f(fc1_);
  f(fc2_);
}

}  // namespace mcpp
