#include "model/layers/moe/moe_layer.h"

#include <algorithm>

#include "parallel/ep/capacity.h"

namespace mcpp {

MoELayer::MoELayer(const std::string& name, i64 layer, StoredRef<ModelContext> context)
    : context_(context),
      part_(context_.splits_sequence() ? nullptr : &context_.tp),
      router_(name + ".router", context),
      experts_(name + ".experts", context) {
  if (context_.config.moe.shared_expert_intermediate_size > 0)
    shared_ = std::make_unique<SharedExpert>(name + ".shared_experts", layer, context);
}

TokenRows MoELayer::rows_of(const Tensor& x, const MicrobatchContext& pass) const {
  const i64 batch = x.dim(1), all = x.dim(0) * batch, first = part_.first_row(all);
  MCPP_CHECK(!pass.training || first % batch == 0, "a rank's tokens begin inside the batch");
  return {.first = first, .count = part_.count(all), .batch = batch, .positions = context_.positions(x, pass).ranges};
}

std::unique_ptr<TokenDispatcher> MoELayer::dispatcher_of(const ExpertChoice& choice, i64 batch,
                                                         const MicrobatchContext& pass) const {
  const ExpertParallel& parallel = context_.experts;
  if (!context_.config.moe.pad_expert_input_to_capacity) return make_token_dispatcher(choice, parallel, 0);
  const i64 ranks = parallel.ep * parallel.tp, tokens = choice.experts.dim(0) * ranks;
  const i64 microbatches = max_microbatches(ranks, parallel.sample ? parallel.sample->size() : 1);
  return make_token_dispatcher(choice, parallel, std::min(router_.capacity(batch, pass) * microbatches, tokens));
}

Tensor MoELayer::forward(const Tensor& x, MicrobatchContext& pass) {
  const Tensor tokens = part_.of(x.as_matrix());
  const Router::Output routed = router_.forward(tokens, rows_of(x, pass), pass);
  pass.save(this, x);
  const ExpertChoice choice = exchange_choices(routed.experts, context_.config.moe.num_experts, context_.experts);
  const auto dispatcher = dispatcher_of(choice, x.dim(1), pass);
  Tensor shared;  // overlaps the exchange of tokens
  const auto overlapped = [&] {
    if (shared_) shared = shared_->forward(x, pass);
  };
  const Tensor y = experts_.forward(dispatcher->dispatch(tokens, overlapped), dispatcher->rows(), pass);
  const TokenDispatcher::Combined combined = dispatcher->combine(y, routed.weights);
  for (const Tensor& t : {choice.experts, choice.gathered_choices, routed.weights, combined.kept}) pass.save(this, t);
  Tensor out = part_.whole(combined.out, x.numel() / x.dim(-1)).view(x.shape());
  if (shared_) ops::add_to(shared, out);
  return out;
}

Tensor MoELayer::backward(const Tensor& dy, MicrobatchContext& pass) {
  const Tensor kept = pass.take(this), weights = pass.take(this), gathered_choices = pass.take(this),
               experts = pass.take(this);
  const auto dispatcher = dispatcher_of({experts, gathered_choices, context_.config.moe.num_experts}, dy.dim(1), pass);
  const auto gradients = dispatcher->combine_backward(part_.of(dy.as_matrix()), kept, weights);
  Tensor d_shared;  // overlaps the exchange of gradients
  const auto overlapped = [&] {
    if (shared_) d_shared = shared_->backward(dy, pass);
  };
  Tensor d_tokens =
      dispatcher->dispatch_backward(experts_.backward(gradients.rows, dispatcher->rows(), pass), overlapped);
  const Tensor x = pass.take(this).view(dy.shape());
  router_.backward(gradients.weights, part_.of(x.as_matrix()), rows_of(x, pass), d_tokens, pass);
  Tensor dx = part_.whole(d_tokens, dy.numel() / dy.dim(-1)).view(dy.shape());
  if (shared_) ops::add_to(d_shared, dx);
  return dx;
}

ActivationPlacement MoELayer::output_placement(ActivationPlacement x) const {
  check_gradient_spread(router_.weight(), ActivationPlacement::SequenceSharded);
  if (shared_) {
    const ActivationPlacement y = shared_->output_placement(x);
    MCPP_CHECK(y == x, "a shared expert gives activations that are ", name_of(y));
  }
  return x;
}

void MoELayer::visit(const ParamVisitor& f) {
  router_.visit(f);
  experts_.visit(f);
  if (shared_) shared_->visit(f);
}

}  // namespace mcpp
