#include "model/gpt_model.h"

#include <algorithm>

#include "model/recompute.h"
#include "model/transformer_layer.h"

namespace mcpp {
namespace {

std::vector<std::unique_ptr<Module>> make_layers(const ModelContext& context, const RotaryTable& rotary) {
  const Recompute& recompute = context.recompute;
  const i64 count = context.config.num_layers;
  const auto layer = [&](i64 i) { return std::make_unique<TransformerLayer>(i, context, rotary); };
  std::vector<std::unique_ptr<Module>> layers;
  for (i64 i = 0; i < count;) {
    const bool uniform = recompute.method == Recompute::Method::Uniform;
    const bool recomputed =
        recompute.granularity == Recompute::Granularity::Full && (uniform || i < recompute.num_layers);
    if (!recomputed) {
      layers.push_back(layer(i++));
      continue;
    }
    std::vector<std::unique_ptr<Module>> group;
    for (const i64 end = std::min(count, i + (uniform ? recompute.num_layers : 1)); i < end; ++i)
      group.push_back(layer(i));
    layers.push_back(std::make_unique<RecomputedLayers>(std::move(group)));
  }
  return layers;
}

}  // namespace

GPTModel::GPTModel(ModelContext context)
    : context_(std::move(context)),
      rotary_(RotaryTable::make(context_)),
      embedding_(context_),
      layers_(make_layers(context_, rotary_)),
      output_(context_, context_.config.untie_embeddings_and_output_weights ? nullptr : &embedding_.word_embeddings()) {
}

void GPTModel::visit(const std::function<void(Param&, int unit)>& f) {
  int unit = 0;
  const ParamVisitor visitor = [&](Param& param) { f(param, unit); };
  embedding_.visit(visitor);
  for (const auto& layer : layers_) ++unit, layer->visit(visitor);
  ++unit;
  output_.visit(visitor);
}

template <class F>
auto GPTModel::with_unit(int unit, Use use, const Pass& pass, F&& f) {
  if (memory_) memory_->acquire(unit, use);
  auto result = f();
  if (memory_) memory_->release(unit, use, pass.is_last);
  return result;
}

Tensor GPTModel::hidden(const Tensor& tokens, Pass& pass) {
  Tensor x = with_unit(0, Use::Forward, pass, [&] { return embedding_.forward(tokens, pass); });
  int unit = 0;
  for (const auto& layer : layers_) x = with_unit(++unit, Use::Forward, pass, [&] { return layer->forward(x, pass); });
  return x;
}

Tensor GPTModel::logits(const Tensor& tokens, Pass& pass) {
  const Tensor x = hidden(tokens, pass);
  return with_unit(units() - 1, Use::Forward, pass, [&] { return output_.logits(x, pass); });
}

TokenLosses GPTModel::forward(const Tensor& tokens, const Tensor& targets, double loss_scale, Pass& pass) {
  const Tensor x = hidden(tokens, pass);
  return with_unit(units() - 1, Use::Forward, pass, [&] { return output_.loss(x, targets, loss_scale, pass); });
}

void GPTModel::backward(Pass& pass) {
  Tensor dx = with_unit(units() - 1, Use::Backward, pass, [&] { return output_.backward(pass); });
  int unit = units() - 1;
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
    dx = with_unit(--unit, Use::Backward, pass, [&] { return (*layer)->backward(dx, pass); });
  }
  with_unit(0, Use::Backward, pass, [&] {
    embedding_.backward(dx, pass);
    pass.weights([this] { output_.add_shared_gradient(); });
    return 0;
  });
  MCPP_CHECK(pass.stash.empty(), "backward left something that forward saved");
}

}  // namespace mcpp
