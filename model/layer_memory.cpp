#include "model/layer_memory.h"

#include <utility>

#include "model/config/block_spec.h"
#include "model/meta_model.h"
#include "model/recorded_pass_memory.h"
#include "model/transformer_layer.h"
#include "tensor/device.h"

namespace mcpp {
namespace {

/// Measures the activations of a module. `forward` and `backward` are called with the context. Their results are
/// discarded.
template <class Forward, class Backward>
LayerBytes measure(MetaRun& run, const Forward& forward, const Backward& backward) {
  const MemoryUse& live = run.device().memory().by_class[static_cast<std::size_t>(MemoryClass::Activations)];
  MicrobatchContext first =
      run.make_microbatch();  // allocates tensors that persist between microbatches, such as rotary tables
  first.saves_for_backward = false;
  forward(first);
  LayerBytes bytes;
  for (const bool delays_wgrad : {true, false}) {
    const i64 before = live.bytes;
    MicrobatchContext microbatch = run.make_microbatch();
    microbatch.delay_wgrad_compute = delays_wgrad;
    forward(microbatch);
    bytes.saved = live.bytes - before;
    run.device().reset_peak();
    backward(microbatch);
    (delays_wgrad ? bytes.working_delayed_wgrad : bytes.working) = live.peak - before - bytes.saved;
    if (delays_wgrad) bytes.waiting = live.bytes - before;
  }
  return bytes;
}

LayerBytes measure_layer(const ModelConfig& config, const ActivationSetup& setup, i64 index) {
  MetaRun run(config, setup);
  RotaryTable rotary(run.context());
  TransformerLayer layer(index, run.context(), rotary);
  layer.visit([&](Param& param) { run.allocate(param); });
  if (layer.router()) layer.router()->allocate_state();
  return measure(
      run, [&](MicrobatchContext& microbatch) { layer.forward(run.make_input(), microbatch); },
      [&](MicrobatchContext& microbatch) { layer.backward(run.make_input(), microbatch); });
}

LayerBytes measure_output(const ModelConfig& config, const ActivationSetup& setup, const StageContents& stage) {
  MetaOutput output(config, setup, stage);
  output.visit([&](Param& param) { output.run().allocate(param); });
  return measure(
      output.run(), [&](MicrobatchContext& microbatch) { output.forward(microbatch); },
      [&](MicrobatchContext& microbatch) { output.backward(microbatch); });
}

}  // namespace

i64 residual_bytes(const ModelConfig& c, const ActivationSetup& setup) {
  return setup.tokens(c) * c.hidden_size * size_of(setup.dtype) / (setup.sequence_parallel ? setup.tensor_parallel : 1);
}

i64 prediction_bytes(const ModelConfig& c, const ActivationSetup& setup) {
  return padded_alloc_size((1 + c.mtp_num_layers) * residual_bytes(c, setup));
}

i64 recompute_input_bytes(const ModelConfig& c, const ActivationSetup& setup) {
  return residual_bytes(c, setup) / (setup.recompute.shards_saved_inputs ? setup.tensor_parallel : 1);
}

ActivationSetup setup_of_layer(const ModelConfig& config, ActivationSetup setup) {
  const Recompute& recompute = setup.recompute;
  if (recompute.granularity == Recompute::Granularity::Full && config.mtp_num_layers > 0)  // in the output
    setup.recompute = {.granularity = recompute.granularity, .shards_saved_inputs = recompute.shards_saved_inputs};
  else if (recompute.granularity != Recompute::Granularity::Selective)
    setup.recompute = {};
  setup.offload = OffloadTier::Device;
  return setup;
}

/// LayerBytes by kind of block and precision, which determine them in a given setup.
class MeasuredLayers {
 public:
  MeasuredLayers(const ModelConfig& config, const ActivationSetup& setup)
      : config_(config), setup_(setup), blocks_(config) {}

  const BlockKinds& blocks() const { return blocks_; }
  const LayerBytes& layer(i64 index) {
    const auto [it, is_new] =
        layers_.try_emplace({blocks_.kind_of_layer.at(static_cast<std::size_t>(index)), setup_.fp8.variant(index)});
    if (is_new) it->second = measure_layer(config_, setup_, index);
    return it->second;
  }
  const LayerBytes& output(const StageContents& stage) {
    const auto [it, is_new] = outputs_.try_emplace(stage.output_part());
    if (is_new) it->second = measure_output(config_, setup_, it->first);
    return it->second;
  }

 private:
  const ModelConfig& config_;
  ActivationSetup setup_;
  BlockKinds blocks_;
  std::map<std::pair<std::size_t, i64>, LayerBytes> layers_;  // by kind of block and Fp8Layers::variant()
  std::map<StageContents, LayerBytes> outputs_;               // by output part
};

LayerSizes::LayerSizes(const ModelConfig& config, const ActivationSetup& setup)
    : LayerSizes(config, setup, std::make_shared<MeasuredLayers>(config, setup_of_layer(config, setup))) {}

LayerSizes::LayerSizes(const ModelConfig& config, const ActivationSetup& setup,
                       std::shared_ptr<MeasuredLayers> measured)
    : config_(config), setup_(setup), measured_(std::move(measured)) {}

const BlockKinds& LayerSizes::blocks() const {
  return measured_->blocks();
}

const LayerBytes& LayerSizes::layer(i64 index) {
  return measured_->layer(index);
}

const LayerBytes& LayerSizes::output(const StageContents& stage) {
  return measured_->output(stage);
}

i64 LayerSizes::recorded_pass() {
  if (!recorded_pass_) recorded_pass_ = recorded_pass_bytes(config_, setup_);
  return *recorded_pass_;
}

LayerSizes& LayerSizesCache::get(const ActivationSetup& setup) {
  if (const auto it = sizes_.find(setup); it != sizes_.end()) return it->second;
  const ActivationSetup key = setup_of_layer(config_, setup);
  std::shared_ptr<MeasuredLayers>& measured = measured_[key];
  if (!measured) measured = std::make_shared<MeasuredLayers>(config_, key);
  return sizes_.try_emplace(setup, config_, setup, measured).first->second;
}

}  // namespace mcpp
