#include "model/gpt_model.h"

#include <algorithm>
#include <utility>

#include "model/layers/recompute.h"
#include "model/module_memory.h"
#include "model/mup.h"
#include "model/transformer_layer.h"

namespace mcpp {
namespace {

StageContents full_model_stage(const ModelConfig& config) {
  return {.first_layer = 0, .end_layer = config.num_layers, .has_embedding = true, .has_output = true};
}

/// Records in the profiler, while it is tracing, the bytes by which each module increases the activations on the device
/// in a training forward pass. Counts the result of the module but not its input.
class ActivationRecorder {
 public:
  ActivationRecorder(const ModelContext& context, const MicrobatchContext& microbatch)
      : device_(context.device),
        profiler_(context.profiler && context.profiler->is_tracing() && microbatch.saves_for_backward ? context.profiler
                                                                                                      : nullptr),
        last_bytes_(live_bytes()) {}

  /// Calls `name()` only while tracing.
  template <class Name>
  void record(Name&& name) {
    if (!profiler_) return;
    const i64 bytes = live_bytes();
    profiler_->record_kept_bytes(name(), bytes - std::exchange(last_bytes_, bytes));
  }

 private:
  i64 live_bytes() const { return device_.memory().by_class[static_cast<std::size_t>(MemoryClass::Activations)].bytes; }

  const Device& device_;
  Profiler* profiler_;
  i64 last_bytes_;
};

/// Returns the result of f, or an empty result if the pass was aborted.
template <class F>
auto run_unless_aborted(const MicrobatchContext& microbatch, F&& f) {
  return microbatch.is_aborted() ? decltype(f()){} : f();
}

}  // namespace

GPTModel::GPTModel(ModelContext context) : GPTModel(context, full_model_stage(context.config), nullptr) {}

GPTModel::GPTModel(ModelContext context, const StageContents& stage, GPTModel* embedding_stage)
    : context_(std::move(context)), stage_(stage), rotary_(context_) {
  if (stage_.has_embedding) embedding_ = std::make_unique<LanguageModelEmbedding>(context_);
  make_layers();
  if (stage_.has_output) {
    LanguageModelEmbedding* embedding = embedding_stage ? embedding_stage->embedding_.get() : embedding_.get();
    Param* const words = embedding ? &embedding->word_embeddings() : nullptr;
    output_ = std::make_unique<OutputLayer>(context_, ties_embeddings() ? words : nullptr);
    if (context_.config.mtp_num_layers > 0) {
      mtp_ = std::make_unique<MultiTokenPrediction>(context_, rotary_, *output_, words);
      i64 index = context_.config.num_layers;
      for (const auto& layer : mtp_->layers()) add_parts(index++, layer->router(), layer->attention());
    }
  }
  check_placements();
  visit([&](Param& param, int) { apply_mup(context_.config, param); });
}

void GPTModel::add_parts(i64 layer, Router* router, Branch* attention) {
  if (router) routers_.push_back({layer, router});
  if (attention) attentions_.push_back({layer, attention});
}

void GPTModel::make_layers() {
  i64 next = stage_.first_layer;
  const auto make_layer = [&] {
    auto result = std::make_unique<TransformerLayer>(next, context_, rotary_);
    add_parts(next++, result->router(), result->attention());
    return result;
  };
  for (const LayerGroup& group : layer_groups(context_.recompute, stage_.num_layers())) {
    if (!group.is_recomputed) {
      layers_.push_back(make_layer());
      last_layer_indices_.push_back(next - 1);
      continue;
    }
    std::vector<std::unique_ptr<Module>> group_layers;
    for (i64 i = 0; i < group.layers; ++i) group_layers.push_back(make_layer());
    Communicator* holders = context_.recompute.shards_saved_inputs ? &context_.tp : nullptr;
    layers_.push_back(std::make_unique<RecomputedLayers>(std::move(group_layers), holders));
    last_layer_indices_.push_back(next - 1);
  }
}

std::vector<std::unique_ptr<GPTModel>> make_chunks(const ModelContext& context,
                                                   const std::vector<StageContents>& stages) {
  std::vector<std::unique_ptr<GPTModel>> chunks;
  for (const StageContents& stage : stages) {
    const bool has_embedding = !chunks.empty() && chunks.front()->stage().has_embedding;
    chunks.push_back(std::make_unique<GPTModel>(context, stage, has_embedding ? chunks.front().get() : nullptr));
  }
  return chunks;
}

void GPTModel::check_placements() {
  std::vector<const Param*> params;
  visit([&](Param& param, int) { params.push_back(&param); });
  check_boxes(params,
              {.dense = {.tp = context_.tp.size()}, .expert = {.tp = context_.experts.tp, .ep = context_.experts.ep}});
  MCPP_CHECK(
      !output_ || !ties_embeddings() || (context_.output_rank > 0) == (output_->weight().own_weight() != nullptr),
      "the output layer is ", output_->weight().own_weight() ? "not " : "",
      "on the same stage as the embedding that it is tied to, but ",
      "the model is built for a pipeline with the output on rank ", context_.output_rank);
  ActivationPlacement x =
      embedding_ ? embedding_->output_placement(ActivationPlacement::Replicated) : context_.stream();
  for (const auto& layer : layers_) x = layer->output_placement(x);
  MCPP_CHECK(x == context_.stream(), "a stage ends with activations that are ", name_of(x),
             ", and the next one expects ", "activations that are ", name_of(context_.stream()));
  if (output_) output_->output_placement(x);
  if (mtp_) mtp_->check_placement(x);
}

void GPTModel::visit(const std::function<void(Param&, int unit)>& f) {
  int unit = 0;
  const ParamVisitor visitor = [&](Param& param) { f(param, unit); };
  if (embedding_) {
    embedding_->visit_word_embeddings(visitor);
    unit = 1, embedding_->visit_position_embeddings(visitor);
  }
  unit = kFirstLayerUnit;
  for (const auto& layer : layers_) layer->visit(visitor), ++unit;
  if (output_) {
    unit = norm_unit(), output_->visit_norm(visitor);
    unit = output_unit(), output_->visit_weight(visitor);
  }
  if (mtp_) {
    unit = mtp_embedding_unit(), mtp_->visit_embedding(visitor);
    for (const auto& layer : mtp_->layers()) ++unit, layer->visit(visitor);
  }
}

bool GPTModel::ties_embeddings() const {
  return !context_.config.untie_embeddings_and_output_weights;
}

bool GPTModel::output_uses_own_embedding() const {
  return embedding_ && output_ && context_.config.output_uses_embeddings();
}

bool GPTModel::has_pending_contribution(int unit) const {
  if (!context_.config.output_uses_embeddings() || (embedding_ && output_)) return false;
  if (embedding_) return unit == 0;
  return output_ && unit == (ties_embeddings() ? output_unit() : mtp_embedding_unit());
}

int GPTModel::last_unit(const MicrobatchContext& microbatch) const {
  return microbatch.saves_for_backward ? units() - 1 : output_unit();
}

void GPTModel::add_shared_gradient() {
  if (output_) output_->weight().add_shared_gradient();
  if (mtp_) mtp_->add_shared_gradient();
}

void GPTModel::acquire(int unit, Use use) {
  if (memory_) memory_->acquire(unit, use);
}

void GPTModel::release(int unit, Use use, bool is_last) {
  if (memory_) memory_->release(unit, use, is_last && !has_pending_contribution(unit));
}

/// Runs f between acquire and release of the units from `first` to `last`, which may be in descending order.
template <class F>
auto GPTModel::run_with_units(int first, int last, Use use, const MicrobatchContext& microbatch, F&& f) {
  const int step = first <= last ? 1 : -1;
  for (int unit = first; unit != last + step; unit += step) acquire(unit, use);
  auto result = run_unless_aborted(microbatch, f);
  for (int unit = first; unit != last + step; unit += step) release(unit, use, microbatch.is_last);
  return result;
}

Tensor GPTModel::forward_hidden(const Tensor& input, MicrobatchContext& microbatch) {
  Tensor x = input;
  ActivationRecorder recorder(context_, microbatch);
  if (embedding_) {
    x = run_with_units(0, 1, Use::Forward, microbatch, [&] { return embedding_->forward(input, microbatch); });
    recorder.record([] { return embedding_module(); });
  }
  i64 first = stage_.first_layer;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const int unit = kFirstLayerUnit + static_cast<int>(i);
    const std::size_t saved = microbatch.saved_tensors.size();
    x = run_with_units(unit, unit, Use::Forward, microbatch, [&] { return layers_[i]->forward(x, microbatch); });
    if (context_.activations && !microbatch.is_aborted())
      microbatch.saved_tensors.offload(saved, *context_.activations);
    recorder.record([&] { return layer_module(first); });
    first = last_layer_indices_[i] + 1;
    if (observer_ && !microbatch.is_aborted()) observer_(last_layer_indices_[i], x);
  }
  return x;
}

/// Runs f(hidden states) with the weights of the output acquired.
template <class F>
auto GPTModel::run_with_output(const Tensor& input, MicrobatchContext& microbatch, F&& f) {
  const Tensor x = forward_hidden(input, microbatch);
  const int last = last_unit(microbatch);
  for (int unit = norm_unit(); unit <= last; ++unit) acquire(unit, Use::Forward);
  // Unit 0 is acquired after a later unit, so that the acquisition is not mistaken for the start of the next forward
  // pass.
  if (output_uses_own_embedding()) acquire(0, Use::Forward);
  ActivationRecorder recorder(context_, microbatch);
  auto result = run_unless_aborted(microbatch, [&] { return f(x); });
  recorder.record([] { return output_module(); });
  if (output_uses_own_embedding()) release(0, Use::Forward, microbatch.is_last);
  for (int unit = norm_unit(); unit <= last; ++unit) release(unit, Use::Forward, microbatch.is_last);
  return result;
}

Tensor GPTModel::forward(const Tensor& input, MicrobatchContext& microbatch) {
  return forward_hidden(input, microbatch);
}

Tensor GPTModel::logits(const Tensor& input, MicrobatchContext& microbatch) {
  return run_with_output(input, microbatch, [&](const Tensor& x) { return output_->logits(x, microbatch); });
}

GPTModel::Losses GPTModel::loss(const Tensor& input, const Targets& targets, double grad_scale,
                                MicrobatchContext& microbatch) {
  return run_with_output(input, microbatch,
                         [&](const Tensor& x) { return output_losses(x, targets, grad_scale, microbatch); });
}

GPTModel::Losses GPTModel::output_losses(const Tensor& hidden, const Targets& targets, double grad_scale,
                                         MicrobatchContext& microbatch) {
  const Tensor normalized = output_->normalize(hidden, microbatch);
  Losses losses{.next = output_->loss_of_normalized(normalized, targets.next, grad_scale,
                                                    context_.config.output_z_loss_coeff, microbatch)};
  if (mtp_ && microbatch.saves_for_backward)
    losses.future = mtp_->loss(normalized, targets.future, grad_scale, microbatch);
  return losses;
}

Tensor GPTModel::backward_output(MicrobatchContext& microbatch) {
  const Tensor d_future = mtp_ ? mtp_->backward(microbatch) : Tensor();
  Tensor d_normalized = output_->backward_to_normalized(microbatch);
  if (d_future.defined()) ops::add_to(d_future, d_normalized);
  return output_->normalize_backward(d_normalized, microbatch);
}

Tensor GPTModel::backward(const Tensor& dy, MicrobatchContext& microbatch) {
  Tensor dx = dy;
  // The gradient of the word embeddings is that of the output plus, at the end of this pass, that of the embedding.
  if (output_uses_own_embedding()) acquire(0, Use::Backward);
  if (output_) {
    dx = run_with_units(units() - 1, norm_unit(), Use::Backward, microbatch,
                        [&] { return backward_output(microbatch); });
  }
  int unit = kFirstLayerUnit + static_cast<int>(layers_.size());
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
    --unit;
    dx = run_with_units(unit, unit, Use::Backward, microbatch, [&] { return (*layer)->backward(dx, microbatch); });
  }
  if (embedding_) backward_embedding(dx, microbatch), dx = {};
  if (output_uses_own_embedding()) release(0, Use::Backward, microbatch.is_last);
  if (microbatch.is_last) are_gradients_released_ = true;
  MCPP_CHECK(microbatch.saved_tensors.empty(), "backward did not use all tensors that forward saved");
  return dx;
}

void GPTModel::backward_embedding(const Tensor& dy, MicrobatchContext& microbatch) {
  for (const int unit : {1, 0}) acquire(unit, Use::Backward);
  if (!microbatch.is_aborted()) embedding_->backward(dy, microbatch);
  const bool reduces_now = microbatch.is_last || (memory_ && memory_->reduces_every_microbatch());
  if (output_ && reduces_now) add_shared_gradient();
  for (const int unit : {1, 0}) release(unit, Use::Backward, microbatch.is_last);
}

void GPTModel::release_gradients() {
  if (std::exchange(are_gradients_released_, false)) return;
  if (output_uses_own_embedding()) add_shared_gradient();
  for (int unit = units() - 1; unit >= 0; --unit) {
    acquire(unit, Use::Backward);
    release(unit, Use::Backward, true);
  }
}

}  // namespace mcpp
