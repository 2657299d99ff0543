#include "model/gpt_model.h"

#include <algorithm>
#include <utility>

#include "model/layers/recompute.h"
#include "model/module_memory.h"
#include "model/transformer_layer.h"

namespace mcpp {
namespace {

/// Units before the first layer: word embeddings and positions.
constexpr int kFirstLayerUnit = 2;

StageContents whole_model(const ModelConfig& config) {
  return {.first_layer = 0, .end_layer = config.num_layers, .has_embedding = true, .has_output = true};
}

/// Reports to the profiler, while it is tracing, by how much each module of a forward pass with backward increases the
/// activations on the device, with its result in place of its input.
class ActivationRecorder {
 public:
  ActivationRecorder(const ModelContext& context, const MicrobatchContext& pass)
      : device_(context.device),
        profiler_(context.profiler && context.profiler->is_tracing() && pass.saves_for_backward ? context.profiler
                                                                                                : nullptr),
        before_(live()) {}

  /// `name()` is called only while tracing.
  template <class Name>
  void end_of(Name&& name) {
    if (!profiler_) return;
    const i64 now = live();
    profiler_->record_kept_bytes(name(), now - std::exchange(before_, now));
  }

 private:
  i64 live() const { return device_.memory().by_class[static_cast<std::size_t>(MemoryClass::Activations)].bytes; }

  const Device& device_;
  Profiler* profiler_;
  i64 before_;
};

/// Runs f unless the pass was aborted; then returns an empty result.
template <class F>
auto run_unless_aborted(const MicrobatchContext& pass, F&& f) {
  return pass.is_aborted() ? decltype(f()){} : f();
}

}  // namespace

GPTModel::GPTModel(ModelContext context) : GPTModel(context, whole_model(context.config), nullptr) {}

GPTModel::GPTModel(ModelContext context, const StageContents& stage, GPTModel* embedding_stage)
    : context_(std::move(context)), stage_(stage), rotary_(context_) {
  if (stage_.has_embedding) embedding_ = std::make_unique<LanguageModelEmbedding>(context_);
  make_layers();
  if (stage_.has_output) {
    LanguageModelEmbedding* embedding = embedding_stage ? embedding_stage->embedding_.get() : embedding_.get();
    const bool shares = ties_embeddings() && embedding;
    output_ = std::make_unique<OutputLayer>(context_, shares ? &embedding->word_embeddings() : nullptr);
  }
  check_placements();
}

void GPTModel::make_layers() {
  i64 next = stage_.first_layer;
  const auto layer = [&] {
    auto made = std::make_unique<TransformerLayer>(next, context_, rotary_);
    if (made->router()) routers_.push_back({next, made->router()});
    ++next;
    return made;
  };
  for (const LayerGroup& group : layer_groups(context_.recompute, stage_.num_layers())) {
    if (!group.is_recomputed) {
      layers_.push_back(layer());
      last_of_layers_.push_back(next - 1);
      continue;
    }
    std::vector<std::unique_ptr<Module>> together;
    for (i64 i = 0; i < group.layers; ++i) together.push_back(layer());
    Communicator* holders = context_.recompute.shards_saved_inputs ? &context_.tp : nullptr;
    layers_.push_back(std::make_unique<RecomputedLayers>(std::move(together), holders));
    last_of_layers_.push_back(next - 1);
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
  MCPP_CHECK(!output_ || !ties_embeddings() || (context_.output_rank > 0) == (output_->own_weight() != nullptr),
             "the output layer is ", output_->own_weight() ? "not " : "",
             "on the same stage as the embedding that it is tied to, but ",
             "the model is built for a pipeline with the output on rank ", context_.output_rank);
  ActivationPlacement x =
      embedding_ ? embedding_->output_placement(ActivationPlacement::Replicated) : context_.stream();
  for (const auto& layer : layers_) x = layer->output_placement(x);
  MCPP_CHECK(x == context_.stream(), "a stage ends with activations that are ", name_of(x),
             ", and the next one expects ", "activations that are ", name_of(context_.stream()));
  if (output_) output_->output_placement(x);
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
}

bool GPTModel::ties_embeddings() const {
  return !context_.config.untie_embeddings_and_output_weights;
}

bool GPTModel::ties_own_embedding() const {
  return embedding_ && output_ && ties_embeddings();
}

bool GPTModel::has_pending_contribution(int unit) const {
  if (!ties_embeddings() || (embedding_ && output_)) return false;
  return (embedding_ && unit == 0) || (output_ && unit == output_unit());
}

void GPTModel::acquire(int unit, Use use) {
  if (memory_) memory_->acquire(unit, use);
}

void GPTModel::release(int unit, Use use, bool last) {
  if (memory_) memory_->release(unit, use, last && !has_pending_contribution(unit));
}

/// Runs f between acquire and release of the units from `first` to `last`, which may be in descending order.
template <class F>
auto GPTModel::with_units(int first, int last, Use use, const MicrobatchContext& pass, F&& f) {
  const int step = first <= last ? 1 : -1;
  for (int unit = first; unit != last + step; unit += step) acquire(unit, use);
  auto result = run_unless_aborted(pass, f);
  for (int unit = first; unit != last + step; unit += step) release(unit, use, pass.is_last);
  return result;
}

Tensor GPTModel::hidden(const Tensor& input, MicrobatchContext& pass) {
  Tensor x = input;
  ActivationRecorder kept(context_, pass);
  if (embedding_) {
    x = with_units(0, 1, Use::Forward, pass, [&] { return embedding_->forward(input, pass); });
    kept.end_of([] { return embedding_module(); });
  }
  i64 first = stage_.first_layer;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const int unit = kFirstLayerUnit + static_cast<int>(i);
    const std::size_t saved = pass.saved_tensors.size();
    x = with_units(unit, unit, Use::Forward, pass, [&] { return layers_[i]->forward(x, pass); });
    if (context_.activations && !pass.is_aborted()) pass.saved_tensors.offload(saved, *context_.activations);
    kept.end_of([&] { return layer_module(first); });
    first = last_of_layers_[i] + 1;
    if (observer_ && !pass.is_aborted()) observer_(last_of_layers_[i], x);
  }
  return x;
}

/// Runs f(hidden states) with the weights of the output acquired.
template <class F>
auto GPTModel::with_output(const Tensor& input, MicrobatchContext& pass, F&& f) {
  const Tensor x = hidden(input, pass);
  for (const int unit : {norm_unit(), output_unit()}) acquire(unit, Use::Forward);
  // Acquired after a later unit, so that it does not look like the start of the next forward pass.
  if (ties_own_embedding()) acquire(0, Use::Forward);
  ActivationRecorder kept(context_, pass);
  auto result = run_unless_aborted(pass, [&] { return f(x); });
  kept.end_of([] { return output_module(); });
  if (ties_own_embedding()) release(0, Use::Forward, pass.is_last);
  for (const int unit : {norm_unit(), output_unit()}) release(unit, Use::Forward, pass.is_last);
  return result;
}

Tensor GPTModel::forward(const Tensor& input, MicrobatchContext& pass) {
  return hidden(input, pass);
}

Tensor GPTModel::logits(const Tensor& input, MicrobatchContext& pass) {
  return with_output(input, pass, [&](const Tensor& x) { return output_->logits(x, pass); });
}

TokenLosses GPTModel::loss(const Tensor& input, const Tensor& targets, double grad_scale, MicrobatchContext& pass) {
  return with_output(input, pass, [&](const Tensor& x) { return output_->loss(x, targets, grad_scale, pass); });
}

Tensor GPTModel::backward(const Tensor& dy, MicrobatchContext& pass) {
  Tensor dx = dy;
  // The gradient of tied embeddings sums the output's part and, at the end of this pass, the embedding's.
  if (ties_own_embedding()) acquire(0, Use::Backward);
  if (output_) {
    dx = with_units(output_unit(), norm_unit(), Use::Backward, pass, [&] { return output_->backward(pass); });
  }
  int unit = kFirstLayerUnit + static_cast<int>(layers_.size());
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
    --unit;
    dx = with_units(unit, unit, Use::Backward, pass, [&] { return (*layer)->backward(dx, pass); });
  }
  if (embedding_) backward_embedding(dx, pass), dx = {};
  if (ties_own_embedding()) release(0, Use::Backward, pass.is_last);
  if (pass.is_last) gradients_are_released_ = true;
  MCPP_CHECK(pass.saved_tensors.empty(), "backward left something that forward saved");
  return dx;
}

void GPTModel::backward_embedding(const Tensor& dy, MicrobatchContext& pass) {
  for (const int unit : {1, 0}) acquire(unit, Use::Backward);
  if (!pass.is_aborted()) embedding_->backward(dy, pass);
  const bool is_reduced_now = pass.is_last || (memory_ && memory_->reduces_every_microbatch());
  if (output_ && is_reduced_now) output_->add_shared_gradient();
  for (const int unit : {1, 0}) release(unit, Use::Backward, pass.is_last);
}

void GPTModel::release_gradients() {
  if (std::exchange(gradients_are_released_, false)) return;
  if (ties_own_embedding()) output_->add_shared_gradient();
  for (int unit = units() - 1; unit >= 0; --unit) {
    acquire(unit, Use::Backward);
    release(unit, Use::Backward, true);
  }
}

}  // namespace mcpp
