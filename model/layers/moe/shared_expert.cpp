#include "model/layers/moe/shared_expert.h"

#include <numeric>

#include "tensor/ops/low_precision/accumulate_copy.h"
#include "tensor/transfer.h"

namespace mcpp {
namespace {

/// The gate is a sigmoid, computed as the weight of the only expert.
const RoutingRule kGate{.topk = 1, .score = RouterScore::Sigmoid};

/// Row and only expert of each token.
struct SelfRouting {
  Tensor rows, experts;  // int32 [T, 1]
};
SelfRouting self_routing(i64 tokens, Device& device) {
  std::vector<i32> rows(static_cast<std::size_t>(tokens)), zeros(static_cast<std::size_t>(tokens), 0);
  std::iota(rows.begin(), rows.end(), 0);
  return {.rows = integers(rows, {tokens, 1}, device), .experts = integers(zeros, {tokens, 1}, device)};
}

}  // namespace

SharedExpert::SharedExpert(const std::string& name, i64 layer, StoredRef<ModelContext> context)
    : mlp_(name, layer, context, context.get().config.moe.shared_expert_intermediate_size) {
  if (!context.get().config.moe.shared_expert_gate) return;
  gate_ = std::make_unique<Fp32Linear>(name + ".gate", context, 1);
  context.get().place_in_stream(gate_->weight());
}

Tensor SharedExpert::forward(const Tensor& x, MicrobatchContext& pass) {
  Tensor y = mlp_.forward(x, pass);
  if (mlp_.bias()) ops::add_bias(y, *mlp_.bias());
  if (!gate_) return y;
  const Tensor logits = gate_->forward(x.as_matrix());
  for (const Tensor& t : {x, logits, y}) pass.save(this, t);
  const SelfRouting routing = self_routing(logits.dim(0), x.device());
  Tensor weights = Tensor::like(logits);
  ops::expert_weights(logits, routing.experts, kGate, weights);
  Tensor gated = Tensor::like(y);
  Tensor out = gated.as_matrix();
  ops::combine_rows(y.as_matrix(), routing.rows, &weights, out);
  return gated;
}

Tensor SharedExpert::backward(const Tensor& dy, MicrobatchContext& pass) {
  if (!gate_) return mlp_.backward(dy, pass);
  const Tensor y = pass.take(this), logits = pass.take(this), x = pass.take(this);
  const SelfRouting routing = self_routing(logits.dim(0), x.device());
  Tensor weights = Tensor::like(logits), d_weights = Tensor::like(logits), d_logits = Tensor::like(logits);
  ops::expert_weights(logits, routing.experts, kGate, weights);
  Tensor d_y = Tensor::like(y);
  Tensor d_rows = d_y.as_matrix();
  ops::combine_rows_backward(dy.as_matrix(), y.as_matrix(), routing.rows, weights, d_rows, d_weights);
  ops::expert_weights_backward(d_weights, logits, routing.experts, kGate, d_logits);
  gate_->weight_gradient(
      d_logits, [x] { return x.as_matrix(); }, pass);
  Tensor dx = mlp_.backward(d_y, pass);
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
