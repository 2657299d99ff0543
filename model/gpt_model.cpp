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

/// Returns the concatenation along the first axis of tensors of one shape.
Tensor join_rows(const std::vector<Tensor>& parts) {
  if (parts.size() == 1) return parts.front();
  const i64 rows = parts.front().dim(0);
  Shape shape = parts.front().shape();
  shape.front() = rows * static_cast<i64>(parts.size());
  const Tensor joined = Tensor::like(parts.front(), shape);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const i64 first = rows * static_cast<i64>(i);
    Tensor part = joined.slice(first, first + rows);
    ops::copy(parts[i], part);
  }
  return joined;
}

/// Returns views of `count` parts of equal size along the first axis.
std::vector<Tensor> split_rows(const Tensor& joined, std::size_t count) {
  const i64 rows = joined.dim(0) / static_cast<i64>(count);
  std::vector<Tensor> parts;
  for (i64 first = 0; first < joined.dim(0); first += rows) parts.push_back(joined.slice(first, first + rows));
  return parts;
}

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
  make_output(embedding_stage);
  check_placements();
  visit([&](Param& param, int) { apply_mup(context_.config, param); });
}

void GPTModel::add_parts(i64 layer, Router* router, Branch* attention) {
  if (router) routers_.push_back({layer, router});
  if (attention) attentions_.push_back({layer, attention});
}

void GPTModel::make_output(GPTModel* embedding_stage) {
  LanguageModelEmbedding* embedding = embedding_stage ? embedding_stage->embedding_.get() : embedding_.get();
  Param* const words = embedding ? &embedding->word_embeddings() : nullptr;
  if (stage_.has_final_norm) final_layernorm_ = std::make_unique<Norm>("decoder.final_layernorm", context_);
  if (stage_.has_output) output_ = std::make_unique<OutputLayer>(context_, ties_embeddings() ? words : nullptr);
  if (!stage_.has_final_norm || context_.config.mtp_num_layers == 0) return;
  MCPP_CHECK(!ties_embeddings() || output_,
             "multi-token prediction with tied embeddings is not in the stage of the output");
  mtp_ = std::make_unique<MultiTokenPrediction>(context_, rotary_, ties_embeddings() ? &output_->weight() : nullptr,
                                                words);
  i64 index = context_.config.num_layers;
  for (const auto& layer : mtp_->layers()) add_parts(index++, layer->router(), layer->attention());
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
      !output_ || !ties_embeddings() || (context_.final_norm_rank > 0) == (output_->weight().own_weight() != nullptr),
      "the output layer is ", output_->weight().own_weight() ? "not " : "",
      "on the same stage as the embedding that it is tied to, but ",
      "the model is built for a pipeline with the output on rank ", context_.final_norm_rank);
  ActivationPlacement x =
      embedding_ ? embedding_->output_placement(ActivationPlacement::Replicated) : context_.stream();
  for (const auto& layer : layers_) x = layer->output_placement(x);
  MCPP_CHECK(x == context_.stream(), "a stage ends with activations that are ", name_of(x),
             ", and the next one expects ", "activations that are ", name_of(context_.stream()));
  if (final_layernorm_) x = final_layernorm_->output_placement(x);
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
  if (final_layernorm_) unit = norm_unit(), final_layernorm_->visit(visitor);
  if (output_) unit = output_unit(), output_->visit(visitor);
  if (mtp_) {
    unit = mtp_embedding_unit(), mtp_->visit_embedding(visitor);
    for (const auto& layer : mtp_->layers()) ++unit, layer->visit(visitor);
  }
}

bool GPTModel::ties_embeddings() const {
  return !context_.config.untie_embeddings_and_output_weights;
}

bool GPTModel::output_uses_embedding() const {
  return ties_embeddings() ? output_ != nullptr : mtp_ != nullptr;
}

bool GPTModel::has_pending_contribution(int unit) const {
  if (!context_.config.output_uses_embeddings() || output_uses_own_embedding()) return false;
  if (embedding_) return unit == 0;
  return output_uses_embedding() && unit == (ties_embeddings() ? output_unit() : mtp_embedding_unit());
}

int GPTModel::last_unit(const MicrobatchContext& microbatch) const {
  return microbatch.saves_for_backward ? units() - 1 : output_unit();
}

void GPTModel::add_shared_gradient() {
  if (output_) output_->weight().add_shared_gradient();
  if (mtp_) mtp_->add_shared_gradient();
}

void GPTModel::wait_for_weights() {
  for (int unit = 0; unit < units(); ++unit) acquire(unit, Use::Forward), release(unit, Use::Forward, false);
}

void GPTModel::visit_gradients(const ParamVisitor& f) {
  visit([&](Param& param, int) { f(param); });
  if (output_ && !output_->weight().own_weight()) output_->weight().visit_gradient(f);
  if (mtp_) mtp_->visit_embedding_gradient(f);
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

Tensor GPTModel::forward(const Tensor& input, MicrobatchContext& microbatch, std::span<const FutureTokens> future) {
  if (!stage_.sends_predictions()) return forward_hidden(input, microbatch);
  return run_with_output(input, microbatch,
                         [&](const Tensor& x) { return join_rows(predictions(x, future, microbatch)); });
}

Tensor GPTModel::final_norm(const Tensor& x, MicrobatchContext& microbatch) {
  return final_layernorm_ ? final_layernorm_->forward(x, microbatch) : x;
}

Tensor GPTModel::logits(const Tensor& input, MicrobatchContext& microbatch) {
  return run_with_output(input, microbatch,
                         [&](const Tensor& x) { return output_->logits(final_norm(x, microbatch), microbatch); });
}

Tensor GPTModel::logits_of_rows(const Tensor& input, const Tensor& rows, MicrobatchContext& microbatch) {
  return run_with_output(input, microbatch, [&](const Tensor& x) {
    return output_->logits_of_rows(final_norm(x, microbatch), rows, microbatch);
  });
}

GPTModel::Losses GPTModel::loss(const Tensor& input, const Targets& targets, double grad_scale,
                                MicrobatchContext& microbatch) {
  return run_with_output(input, microbatch,
                         [&](const Tensor& x) { return output_losses(x, targets, grad_scale, microbatch); });
}

std::size_t GPTModel::num_predictions(const MicrobatchContext& microbatch) const {
  return 1 + static_cast<std::size_t>(microbatch.saves_for_backward ? context_.config.mtp_num_layers : 0);
}

std::vector<Tensor> GPTModel::predictions(const Tensor& hidden, std::span<const FutureTokens> future,
                                          MicrobatchContext& microbatch) {
  if (!final_layernorm_) return split_rows(hidden, num_predictions(microbatch));
  const Tensor normalized = final_layernorm_->forward(hidden, microbatch);
  if (num_predictions(microbatch) == 1) return {normalized};
  return mtp_->forward(normalized, future, microbatch);
}

GPTModel::Losses GPTModel::output_losses(const Tensor& hidden, const Targets& targets, double grad_scale,
                                         MicrobatchContext& microbatch) {
  const std::vector<Tensor> states = predictions(hidden, targets.future, microbatch);
  const ModelConfig& config = context_.config;
  Losses losses{.next =
                    output_->loss(states.front(), targets.next, grad_scale, config.output_z_loss_coeff, microbatch)};
  MCPP_CHECK(states.size() == 1 || states.size() == 1 + targets.future.size(), "there are targets for ",
             targets.future.size(), " of ", states.size() - 1, " layers of multi-token prediction");
  const double factor = config.mtp_loss_scaling_factor / static_cast<double>(std::max<i64>(config.mtp_num_layers, 1));
  for (std::size_t i = 1; i < states.size(); ++i)
    losses.future.push_back(output_->loss(states[i], targets.future[i - 1].targets, grad_scale * factor,
                                          /*z_loss_coeff=*/0, microbatch));
  return losses;
}

Tensor GPTModel::backward_output(const Tensor& dy, MicrobatchContext& microbatch) {
  std::vector<Tensor> d_states(num_predictions(microbatch));
  if (output_)
    std::ranges::generate(d_states.rbegin(), d_states.rend(), [&] { return output_->backward(microbatch); });
  else
    d_states = split_rows(dy, d_states.size());
  if (!final_layernorm_) return join_rows(d_states);
  const Tensor d_normalized = mtp_ ? mtp_->backward(std::move(d_states), microbatch) : d_states.front();
  return final_layernorm_->backward(d_normalized, microbatch);
}

Tensor GPTModel::backward(const Tensor& dy, MicrobatchContext& microbatch) {
  Tensor dx = dy;
  // The gradient of the word embeddings is the gradient of the output plus, at the end of this pass, the gradient of
  // the embedding.
  if (output_uses_own_embedding()) acquire(0, Use::Backward);
  if (stage_.has_output_part()) {
    dx = run_with_units(units() - 1, norm_unit(), Use::Backward, microbatch,
                        [&] { return backward_output(dy, microbatch); });
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
  if (output_uses_own_embedding() && reduces_now) add_shared_gradient();
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
