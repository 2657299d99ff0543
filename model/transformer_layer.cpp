#include "model/transformer_layer.h"

#include <optional>
#include <utility>

#include "tensor/processor.h"

namespace mcpp {

ResidualBranch::ResidualBranch(std::string site, StoredRef<ModelContext> context, NormPosition norms,
                               const std::string& before, std::unique_ptr<Branch> branch, const std::string& after)
    : site_(std::move(site)), context_(context), branch_(std::move(branch)) {
  if (norms != NormPosition::Post) before_ = std::make_unique<Norm>(before, context_);
  if (norms != NormPosition::Pre) after_ = std::make_unique<Norm>(after, context_);
}

Dropout ResidualBranch::dropout(const Tensor& x, const MicrobatchContext& microbatch) const {
  return context_.dropout_for(context_.config.hidden_dropout, site_, context_.positions(x, microbatch).ranges,
                              microbatch);
}

Tensor ResidualBranch::forward(const Tensor& x, const Tensor& residual, MicrobatchContext& microbatch) {
  const ProfileRange range(context_.device, context_.profiler, site_.c_str());
  const Tensor input = before_ ? before_->forward(x, microbatch) : x;
  std::optional<MicrobatchContext::DiscardScope> discard;
  if (before_ && context_.recompute.layernorm)
    discard.emplace(microbatch, input, std::vector{x},
                    [norm = before_.get()](std::span<const Tensor> saved) { return norm->normalize(saved[0]); });
  Tensor y = branch_->forward(input, microbatch);
  const Tensor* bias = branch_->bias();
  if (after_) {
    if (bias) ops::add_bias(y, *std::exchange(bias, nullptr));
    y = after_->forward(y, microbatch);
  }
  ops::bias_dropout_add(y, bias, residual, dropout(residual, microbatch), y);
  return y;
}

void ResidualBranch::backward_branch(const Tensor& d_added, MicrobatchContext& microbatch, Tensor& dx) {
  const Tensor d_output = after_ ? after_->backward(d_added, microbatch) : d_added;
  const Tensor d_input = branch_->backward(d_output, microbatch);
  before_ ? before_->backward_add(d_input, microbatch, dx) : ops::add_to(d_input, dx);
}

Tensor ResidualBranch::backward(const Tensor& dy, MicrobatchContext& microbatch) {
  const ProfileRange range(context_.device, context_.profiler, site_.c_str());
  const Dropout drop = dropout(dy, microbatch);
  Tensor d_added = dy, dx = dy;
  if (drop.p > 0) {
    d_added = Tensor::like(dy);
    ops::dropout(dy, drop, d_added);
  } else if (microbatch.delay_wgrad_compute && !after_) {  // a delayed weight gradient still reads dy
    dx = Tensor::like(dy);
    ops::copy(dy, dx);
  }
  backward_branch(d_added, microbatch, dx);
  return dx;
}

void ResidualBranch::backward_add(const Tensor& dy, MicrobatchContext& microbatch, Tensor& dx) {
  const ProfileRange range(context_.device, context_.profiler, site_.c_str());
  const Dropout drop = dropout(dy, microbatch);
  Tensor d_added = dy;
  if (drop.p > 0) {
    d_added = Tensor::like(dy);
    ops::dropout(dy, drop, d_added);
  }
  backward_branch(d_added, microbatch, dx);
}

ActivationPlacement ResidualBranch::output_placement(ActivationPlacement x) const {
  ActivationPlacement y = branch_->output_placement(before_ ? before_->output_placement(x) : x);
  if (after_) y = after_->output_placement(y);
  MCPP_CHECK(y == x, site_, " adds activations that are ", name_of(y), " to a residual that is ", name_of(x));
  return y;
}

void ResidualBranch::visit(const ParamVisitor& f) {
  if (before_) before_->visit(f);
  branch_->visit(f);
  if (after_) after_->visit(f);
}

namespace {

std::string layer_name(const ModelConfig& config, i64 layer) {
  return layer < config.num_layers ? str("decoder.layers.", layer)
                                   : str("mtp.layers.", layer - config.num_layers, ".transformer_layer");
}

}  // namespace

TransformerLayer::TransformerLayer(i64 layer, StoredRef<ModelContext> context, RotaryTable& rotary)
    : TransformerLayer(layer, block_spec(context.get().config, layer), context, rotary) {}

TransformerLayer::TransformerLayer(i64 layer, const BlockSpec& spec, StoredRef<ModelContext> context,
                                   RotaryTable& rotary)
    : context_(context) {
  const std::string name = layer_name(context_.config, layer), attention = name + ".self_attention",
                    mlp = name + ".mlp";
  if (spec.attention())
    attention_ = std::make_unique<ResidualBranch>(
        attention, context, spec.norm_position, name + ".input_layernorm",
        std::make_unique<SelfAttention>(attention, layer, *spec.attention(), context, rotary),
        name + ".post_self_attn_layernorm");
  if (const RecurrentSpec* recurrent = spec.recurrent()) {
    const std::string mixer = recurrent->is_mamba() ? name + ".mixer" : attention;
    attention_ = std::make_unique<ResidualBranch>(mixer, context, spec.norm_position, name + ".input_layernorm",
                                                  std::make_unique<RecurrentMixer>(mixer, layer, *recurrent, context),
                                                  name + ".post_self_attn_layernorm");
  }
  if (spec.latent_attention())
    attention_ = std::make_unique<ResidualBranch>(
        attention, context, spec.norm_position, name + ".input_layernorm",
        std::make_unique<MultiLatentAttention>(attention, layer, *spec.latent_attention(), context, rotary),
        name + ".post_self_attn_layernorm");
  if (spec.has_feed_forward())
    mlp_ = std::make_unique<ResidualBranch>(mlp, context, spec.norm_position, name + ".pre_mlp_layernorm",
                                            make_feed_forward(layer, spec, mlp), name + ".post_mlp_layernorm");
}

std::unique_ptr<Branch> TransformerLayer::make_feed_forward(i64 layer, const BlockSpec& spec, const std::string& name) {
  if (spec.mlp()) return std::make_unique<Mlp>(name, layer, context_, spec.mlp()->ffn_hidden_size);
  auto experts = std::make_unique<MoELayer>(name, layer, *spec.moe(), context_);
  router_ = &experts->router();
  return experts;
}

Tensor TransformerLayer::forward(const Tensor& x, MicrobatchContext& microbatch) {
  const Tensor x1 = attention_ ? attention_->forward(x, x, microbatch) : x;
  if (!mlp_) return x1;
  return mlp_->forward(context_.config.use_parallel_residual ? x : x1, x1, microbatch);
}

Tensor TransformerLayer::backward(const Tensor& dy, MicrobatchContext& microbatch) {
  if (!context_.config.use_parallel_residual || !attention_ || !mlp_) {
    const Tensor d_x1 = mlp_ ? mlp_->backward(dy, microbatch) : dy;
    return attention_ ? attention_->backward(d_x1, microbatch) : d_x1;
  }
  Tensor dx = Tensor::like(dy);  // both branches read dy
  ops::copy(dy, dx);
  mlp_->backward_add(dy, microbatch, dx);
  attention_->backward_add(dy, microbatch, dx);
  return dx;
}

ActivationPlacement TransformerLayer::output_placement(ActivationPlacement x) const {
  const ActivationPlacement x1 = attention_ ? attention_->output_placement(x) : x;
  return mlp_ ? mlp_->output_placement(x1) : x1;
}

void TransformerLayer::visit(const ParamVisitor& f) {
  if (attention_) attention_->visit(f);
  if (mlp_) mlp_->visit(f);
}

}  // namespace mcpp
