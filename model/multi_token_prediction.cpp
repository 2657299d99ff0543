#include "model/multi_token_prediction.h"

#include <utility>

#include "base/strings.h"
#include "model/layers/embedding.h"
#include "model/layers/recompute.h"
#include "model/transformer_layer.h"
#include "tensor/processor.h"

namespace mcpp {
namespace {

std::string layer_name(i64 index) {
  return str("mtp.layers.", index);
}

/// Returns views of the two halves of the last axis of x [s, b, 2h], as one head each.
std::pair<Heads, Heads> halves(const Tensor& x) {
  const Heads both = dense_heads(x, 2);
  return {slice_heads(both, 0, 1), slice_heads(both, 1, 1)};
}

/// Returns the concatenation [s, b, 2h] of a and b [s, b, h] along the last axis.
Tensor join(const Tensor& a, const Tensor& b) {
  Tensor joined = Tensor::like(a, {a.dim(0), a.dim(1), 2 * a.dim(2)});
  auto [first, second] = halves(joined);
  ops::copy_heads(dense_heads(a, 1), first);
  ops::copy_heads(dense_heads(b, 1), second);
  return joined;
}

/// Returns a contiguous copy [s, b, h] of a view from halves().
Tensor copy_half(const Heads& half) {
  Tensor x = Tensor::like(half.base, {half.seq, half.batch, half.head_dim});
  Heads to = dense_heads(x, 1);
  ops::copy_heads(half, to);
  return x;
}

}  // namespace

MtpLayer::MtpLayer(i64 index, StoredRef<ModelContext> context, RotaryTable& rotary)
    : context_(context),
      enorm_(layer_name(index) + ".enorm", context_),
      hnorm_(layer_name(index) + ".hnorm", context_),
      region_(context_.tp, context_.sequence_parallel),
      eh_proj_(layer_name(index) + ".eh_proj", 2 * context_.config.hidden_size, {context_.config.hidden_size}, 0,
               context_.tp,
               {.bias = false,
                .init_std = context_.config.init_method_std,
                .sequence_parallel = context_.sequence_parallel,
                .tp_comm_overlap = context_.tp_comm_overlap},
               /*gather_output=*/true),
      final_layernorm_(layer_name(index) + ".final_layernorm", context_) {
  auto layer = std::make_unique<TransformerLayer>(context_.config.num_layers + index, context, rotary);
  router_ = layer->router();
  attention_ = layer->attention();
  if (context_.recompute.granularity != Recompute::Granularity::Full) {
    layer_ = std::move(layer);
    return;
  }
  std::vector<std::unique_ptr<Module>> group;
  group.push_back(std::move(layer));
  layer_ = std::make_unique<RecomputedLayers>(std::move(group),
                                              context_.recompute.shards_saved_inputs ? &context_.tp : nullptr);
}

Tensor MtpLayer::own_rows(const Tensor& x) const {
  if (!region_.sequence_parallel()) return x;
  const i64 rows = x.dim(0) / context_.tp.size(), first = context_.tp.rank() * rows;
  Tensor own = Tensor::like(x, {rows, x.dim(1), x.dim(2)});
  ops::copy(x.slice(first, first + rows), own);
  return own;
}

Tensor MtpLayer::forward(const Input& x, MicrobatchContext& microbatch) {
  const ProfileRange range(context_.device, context_.profiler, "mtp");
  const Tensor embedding = enorm_.forward(x.embedding, microbatch), hidden = hnorm_.forward(x.hidden, microbatch);
  const Tensor joined = join(embedding, hidden);
  const Tensor projected = own_rows(eh_proj_.forward(joined, microbatch));
  return final_layernorm_.forward(layer_->forward(projected, microbatch), microbatch);
}

MtpLayer::Input MtpLayer::backward(const Tensor& dy, MicrobatchContext& microbatch) {
  const ProfileRange range(context_.device, context_.profiler, "mtp");
  const Tensor d_projected = layer_->backward(final_layernorm_.backward(dy, microbatch), microbatch);
  const Tensor d_joined = eh_proj_.backward(region_.gather_sequence(d_projected).wait(), microbatch);
  const auto [d_embedding, d_hidden] = halves(d_joined);
  const Tensor dh = hnorm_.backward(copy_half(d_hidden), microbatch);
  return {.embedding = enorm_.backward(copy_half(d_embedding), microbatch), .hidden = dh};
}

void MtpLayer::check_placement(ActivationPlacement x) const {
  enorm_.output_placement(x);
  eh_proj_.output_placement(x);
  final_layernorm_.output_placement(layer_->output_placement(hnorm_.output_placement(x)));
}

void MtpLayer::visit(const ParamVisitor& f) {
  enorm_.visit(f);
  hnorm_.visit(f);
  eh_proj_.visit(f);
  layer_->visit(f);
  final_layernorm_.visit(f);
}

MultiTokenPrediction::MultiTokenPrediction(StoredRef<ModelContext> context, RotaryTable& rotary,
                                           VocabMatrix* tied_output, Param* shared_embedding)
    : context_(context), region_(context_.tp, context_.sequence_parallel), tied_output_(tied_output) {
  if (!tied_output_) {
    embedding_ = std::make_unique<VocabMatrix>("embedding.word_embeddings.weight", context, shared_embedding);
    if (!shared_embedding) embedding_->own_weight()->placement.pp = context_.word_embedding_ranks();
  }
  for (i64 i = 0; i < context_.config.mtp_num_layers; ++i)
    layers_.push_back(std::make_unique<MtpLayer>(i, context, rotary));
}

Tensor MultiTokenPrediction::embed(const Tensor& tokens, MicrobatchContext& microbatch) {
  microbatch.save(this, tokens);
  const Tensor& table = embedding().value();
  Tensor y = Tensor::empty({tokens.dim(0), tokens.dim(1), table.dim(1)}, table.dtype(), table.device());
  ops::embedding(tokens, table, embedding().box().offset[0], y);
  y = region_.sum(y).wait();
  if (const double factor = embedding_multiplier(context_); factor != 1) ops::scale(y, factor);
  return y;
}

void MultiTokenPrediction::embed_backward(const Tensor& dy, MicrobatchContext& microbatch) {
  const Tensor tokens = microbatch.take(this);
  Tensor d_table = dy;  // may be overwritten, because nothing else reads it
  if (const double factor = embedding_multiplier(context_); factor != 1) ops::scale(d_table, factor);
  microbatch.run_or_delay_wgrad([this, d_table, tokens] {
    const Tensor full = region_.gather_sequence(d_table).wait();
    embedding().add_grad([&](Tensor& sum, float beta) {
      ops::embedding_backward(full, tokens, embedding().box().offset[0], sum, beta);
    });
  });
}

std::vector<Tensor> MultiTokenPrediction::forward(const Tensor& hidden, std::span<const FutureTokens> future,
                                                  MicrobatchContext& microbatch) {
  MCPP_CHECK(future.size() == layers_.size(), "the microbatch has future tokens for ", future.size(), " of ",
             layers_.size(), " layers of multi-token prediction");
  std::vector<Tensor> states{hidden};
  for (std::size_t i = 0; i < layers_.size(); ++i)
    states.push_back(
        layers_[i]->forward({.embedding = embed(future[i].tokens, microbatch), .hidden = states[i]}, microbatch));
  return states;
}

Tensor MultiTokenPrediction::backward(std::vector<Tensor> dy, MicrobatchContext& microbatch) {
  MCPP_CHECK(dy.size() == layers_.size() + 1, "there are ", dy.size(), " gradients for ", layers_.size(), " layers");
  for (std::size_t i = layers_.size(); i > 0; --i) {
    const MtpLayer::Input dx = layers_[i - 1]->backward(std::exchange(dy[i], {}), microbatch);
    embed_backward(dx.embedding, microbatch);
    ops::add_to(dx.hidden, dy[i - 1]);
  }
  return dy.front();
}

void MultiTokenPrediction::check_placement(ActivationPlacement hidden) const {
  for (const auto& layer : layers_) layer->check_placement(hidden);
}

void MultiTokenPrediction::visit_embedding(const ParamVisitor& f) {
  if (embedding_) embedding_->visit(f);
}

void MultiTokenPrediction::add_shared_gradient() {
  if (embedding_) embedding_->add_shared_gradient();
}

}  // namespace mcpp
