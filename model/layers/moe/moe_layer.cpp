#include "model/layers/moe/moe_layer.h"

#include <algorithm>

#include "parallel/ep/capacity.h"
#include "tensor/ops/ops.h"

namespace mcpp {
namespace {

Tensor ones_like(const Tensor& x) {
  Tensor ones = Tensor::like(x);
  ops::fill(ones, 1);
  return ones;
}

/// Lets another pass run while an exchange is in flight.
void yield_to_other_pass(const MicrobatchContext& microbatch) {
  if (microbatch.yield) microbatch.yield();
}

}  // namespace

LatentProjection::LatentProjection(const std::string& name, i64 in, i64 out, double init_std,
                                   const ModelContext& context)
    : slice_(name, slab({out, in}, 0, 0, out), slab({out}, 0, 0, out),
             {.bias = context.config.mlp_bias(), .init_std = init_std}) {
  slice_.visit([](Param& param) { param.placement.tp = {gradient_spread(ActivationPlacement::SequenceSharded)}; });
}

Tensor LatentProjection::backward(const Tensor& dy, const Tensor& x, MicrobatchContext& microbatch) {
  Tensor dx = slice_.input_gradient(dy, {});
  microbatch.run_or_delay_wgrad([this, dy, x] { slice_.weight_gradient(dy, x, {}); });
  return dx;
}

MoELayer::MoELayer(const std::string& name, i64 layer, const MoeSpec& spec, StoredRef<ModelContext> context)
    : context_(context),
      shard_(context_.splits_sequence() ? nullptr : &context_.tp),
      router_(name + ".router", context),
      experts_(name + ".experts", layer, spec, context) {
  if (spec.latent_size > 0) {
    const i64 hidden = context_.config.hidden_size;
    fc1_latent_proj_ = std::make_unique<LatentProjection>(name + ".fc1_latent_proj", hidden, spec.latent_size,
                                                          context_.config.init_method_std, context_);
    fc2_latent_proj_ = std::make_unique<LatentProjection>(name + ".fc2_latent_proj", spec.latent_size, hidden,
                                                          context_.output_init_std(layer), context_);
  }
  if (spec.shared_expert_intermediate_size > 0)
    shared_ =
        std::make_unique<SharedExpert>(name + ".shared_experts", layer, spec.shared_expert_intermediate_size, context);
}

TokenRows MoELayer::token_rows(const Tensor& x, const MicrobatchContext& microbatch) const {
  const i64 batch = x.dim(1), all = x.dim(0) * batch, first = shard_.first_row(all);
  MCPP_CHECK(!microbatch.training || first % batch == 0, "a rank's tokens must start at a multiple of the batch size");
  return {.first = first,
          .count = shard_.count(all),
          .batch = batch,
          .positions = context_.positions(x, microbatch).ranges};
}

std::unique_ptr<TokenDispatcher> MoELayer::make_dispatcher(const ExpertChoice& choice, i64 batch,
                                                           const MicrobatchContext& microbatch) const {
  const ExpertParallel& parallel = context_.experts;
  if (!context_.config.moe.pad_expert_input_to_capacity) return make_token_dispatcher(choice, parallel);
  const i64 ranks = parallel.ep * parallel.tp, sample = parallel.sample ? parallel.sample->size() : 1,
            tokens = choice.experts.dim(0), capacity = router_.capacity(batch, microbatch);
  // If ranks share a microbatch, all tokens of an expert may be on one of them, so messages of a fixed size would be
  // larger by the number of these ranks.
  return make_token_dispatcher(choice, parallel,
                               {.per_rank = ranks > 1 && sample > 1 ? 0 : std::min(capacity, tokens),
                                .per_expert = std::min(capacity * max_microbatches(ranks, sample), tokens * ranks)});
}

Tensor MoELayer::forward(const Tensor& x, MicrobatchContext& microbatch) {
  const Tensor tokens = shard_.scatter(x.as_matrix());
  const Router::Output routed = router_.forward(tokens, token_rows(x, microbatch), microbatch);
  microbatch.save(this, x);
  const ExpertChoice choice = exchange_choices(routed.experts, context_.config.moe.num_experts, context_.experts);
  const auto dispatcher = make_dispatcher(choice, x.dim(1), microbatch);
  Tensor shared;
  const auto overlap_dispatch = [&] {
    if (shared_) shared = shared_->forward(x, microbatch);
    yield_to_other_pass(microbatch);
  };
  const bool scales_input = context_.config.moe.apply_probs_on_input;
  const Tensor latent = fc1_latent_proj_ ? fc1_latent_proj_->forward(tokens) : tokens;
  if (fc1_latent_proj_ && scales_input) microbatch.save(this, latent);
  const Tensor inputs = scales_input ? scale_rows(latent, routed.weights) : latent;
  const Tensor sent = encode_if_defined(inputs, experts_.token_encoding());
  const Tensor y = experts_.forward(dispatcher->dispatch(sent, overlap_dispatch), dispatcher->rows(), microbatch);
  const TokenDispatcher::Combined combined = dispatcher->combine(
      y, scales_input ? ones_like(routed.weights) : routed.weights, [&] { yield_to_other_pass(microbatch); });
  if (scales_input) microbatch.save(this, routed.weights);
  for (const Tensor& t : {choice.experts, choice.gathered_choices, combined.weights, combined.saved})
    microbatch.save(this, t);
  if (fc2_latent_proj_) microbatch.save(this, combined.out);
  const Tensor projected = fc2_latent_proj_ ? fc2_latent_proj_->forward(combined.out) : combined.out;
  Tensor out = shard_.gather(projected, x.numel() / x.dim(-1)).view(x.shape());
  if (shared_) ops::add_to(shared, out);
  return out;
}

Tensor MoELayer::backward(const Tensor& dy, MicrobatchContext& microbatch) {
  Tensor d_combined = shard_.scatter(dy.as_matrix());
  if (fc2_latent_proj_) d_combined = fc2_latent_proj_->backward(d_combined, microbatch.take(this), microbatch);
  const Tensor saved_outputs = microbatch.take(this), weights = microbatch.take(this),
               gathered_choices = microbatch.take(this), experts = microbatch.take(this);
  const bool scales_input = context_.config.moe.apply_probs_on_input;
  const Tensor input_scales = scales_input ? microbatch.take(this) : Tensor();
  const auto dispatcher =
      make_dispatcher({experts, gathered_choices, context_.config.moe.num_experts}, dy.dim(1), microbatch);
  auto gradients = dispatcher->combine_backward(d_combined, saved_outputs, weights, experts_.gradient_encoding(),
                                                [&] { yield_to_other_pass(microbatch); });
  // The weight gradients of the experts are computed during the next exchange, unless the schedule, such as zb-v,
  // delays those of all layers.
  const bool overlaps_wgrad = microbatch.yield && !microbatch.delay_wgrad_compute;
  const auto backward_experts = [&] {
    if (overlaps_wgrad) microbatch.delay_wgrad_compute = true;
    const Tensor d_rows = experts_.backward(gradients.rows, dispatcher->rows(), microbatch);
    if (overlaps_wgrad) microbatch.delay_wgrad_compute = false;
    return d_rows;
  };
  Tensor d_shared;
  const auto overlap_dispatch = [&] {
    if (overlaps_wgrad) microbatch.run_delayed_wgrads();
    if (shared_) d_shared = shared_->backward(dy, microbatch);
    yield_to_other_pass(microbatch);
  };
  Tensor d_tokens = dispatcher->dispatch_backward(backward_experts(), overlap_dispatch);
  const Tensor latent = fc1_latent_proj_ && scales_input ? microbatch.take(this) : Tensor();
  const Tensor x = microbatch.take(this).view(dy.shape()), tokens = shard_.scatter(x.as_matrix());
  if (scales_input) {
    const Tensor d_inputs = d_tokens;
    d_tokens = Tensor::like(d_inputs);
    scale_rows_backward(d_inputs, latent.defined() ? latent : tokens, input_scales, d_tokens, gradients.weights);
  }
  if (fc1_latent_proj_) d_tokens = fc1_latent_proj_->backward(d_tokens, tokens, microbatch);
  router_.backward(gradients.weights, tokens, token_rows(x, microbatch), d_tokens, microbatch);
  Tensor dx = shard_.gather(d_tokens, dy.numel() / dy.dim(-1)).view(dy.shape());
  if (shared_) ops::add_to(d_shared, dx);
  return dx;
}

ActivationPlacement MoELayer::output_placement(ActivationPlacement x) const {
  check_gradient_spread(router_.weight(), ActivationPlacement::SequenceSharded);
  if (fc1_latent_proj_) {
    for (LatentProjection* linear : {fc1_latent_proj_.get(), fc2_latent_proj_.get()})
      linear->visit([](Param& param) { check_gradient_spread(param, ActivationPlacement::SequenceSharded); });
  }
  if (shared_) {
    const ActivationPlacement y = shared_->output_placement(x);
    MCPP_CHECK(y == x, "a shared expert returns activations that are ", name_of(y));
  }
  return x;
}

void MoELayer::visit(const ParamVisitor& f) {
  router_.visit(f);
  if (fc1_latent_proj_) fc1_latent_proj_->visit(f), fc2_latent_proj_->visit(f);
  experts_.visit(f);
  if (shared_) shared_->visit(f);
}

}  // namespace mcpp
