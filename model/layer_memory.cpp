#include "model/layer_memory.h"

#include <optional>
#include <utility>

#include "model/config/block_spec.h"
#include "model/layers/output_layer.h"
#include "model/meta_model.h"
#include "model/transformer_layer.h"
#include "parallel/cp/sequence_partition.h"

namespace mcpp {
namespace {

/// Measures the activations of one module that processes one microbatch on the meta device.
class ActivationMeter {
 public:
  ActivationMeter(const ModelConfig& config, const ActivationSetup& setup)
      : setup_(setup),
        meta_(setup),
        context_(meta_.context(config)),
        input_shape_{context_.local_seq_length() / (context_.splits_sequence() ? setup.tensor_parallel : 1),
                     setup.micro_batch_size, config.hidden_size} {
    if (setup.partition.ranks() > 1)
      partition_ = std::make_shared<SamplePartition>(SamplePartition::zigzag(setup.partition, config.seq_length));
  }

  const ModelContext& context() const { return context_; }

  /// Gives memory to a parameter.
  void allocate(Param& param) {
    param.value = Tensor::empty(param.box.shape, setup_.dtype, meta_.device(), MemoryClass::Params);
    param.main_grad =
        Tensor::empty(param.box.shape, accumulate_dtype(setup_.dtype), meta_.device(), MemoryClass::Grads);
  }
  Tensor make_input() { return Tensor::empty(input_shape_, setup_.dtype, meta_.device()); }

  /// `forward` takes the module's input, `backward` has no arguments but the context; their results are dropped.
  template <class Forward, class Backward>
  LayerBytes measure(const Forward& forward, const Backward& backward) {
    MicrobatchContext first = make_microbatch();  // allocates what is kept between microbatches, such as rotary tables
    first.saves_for_backward = false;
    forward(make_input(), first);
    LayerBytes bytes;
    for (const bool delays_wgrad : {true, false}) {
      const i64 before = live().bytes;
      MicrobatchContext microbatch = make_microbatch();
      microbatch.delay_wgrad_compute = delays_wgrad;
      forward(make_input(), microbatch);
      bytes.kept = live().bytes - before;
      meta_.device().reset_peak();
      backward(microbatch);
      (delays_wgrad ? bytes.working_delayed_wgrad : bytes.working) = live().peak - before - bytes.kept;
      if (delays_wgrad) bytes.waiting = live().bytes - before;
    }
    return bytes;
  }

 private:
  const MemoryUse& live() {
    return meta_.device().memory().by_class[static_cast<std::size_t>(MemoryClass::Activations)];
  }
  MicrobatchContext make_microbatch() const {
    MicrobatchContext microbatch;
    microbatch.samples.assign(static_cast<std::size_t>(setup_.micro_batch_size), 0);
    microbatch.partition = partition_;
    if (partition_) microbatch.positions = partition_->rank_positions(0);
    return microbatch;
  }

  const ActivationSetup& setup_;
  MetaModelContext meta_;
  ModelContext context_;
  Shape input_shape_;
  std::shared_ptr<const SamplePartition> partition_;
};

LayerBytes measure_layer(const ModelConfig& config, const ActivationSetup& setup, i64 index) {
  ActivationMeter meter(config, setup);
  RotaryTable rotary(meter.context());
  TransformerLayer layer(index, meter.context(), rotary);
  layer.visit([&](Param& param) { meter.allocate(param); });
  if (layer.router()) layer.router()->allocate_state();
  return meter.measure([&](const Tensor& x, MicrobatchContext& microbatch) { layer.forward(x, microbatch); },
                       [&](MicrobatchContext& microbatch) { layer.backward(meter.make_input(), microbatch); });
}

LayerBytes measure_output(const ModelConfig& config, const ActivationSetup& setup) {
  ActivationMeter meter(config, setup);
  OutputLayer output(meter.context(), nullptr);
  output.visit([&](Param& param) { meter.allocate(param); });
  const Tensor targets =
      Tensor::empty({meter.context().local_seq_length(), setup.micro_batch_size}, DType::I32, meter.context().device);
  return meter.measure([&](const Tensor& x, MicrobatchContext& microbatch) { output.loss(x, targets, 1, microbatch); },
                       [&](MicrobatchContext& microbatch) { output.backward(microbatch); });
}

}  // namespace

i64 residual_bytes(const ModelConfig& c, const ActivationSetup& setup) {
  return setup.tokens(c) * c.hidden_size * size_of(setup.dtype) / (setup.sequence_parallel ? setup.tensor_parallel : 1);
}

i64 recompute_input_bytes(const ModelConfig& c, const ActivationSetup& setup) {
  return residual_bytes(c, setup) / (setup.recompute.shards_saved_inputs ? setup.tensor_parallel : 1);
}

/// LayerBytes by block and precision, on which alone they depend in a given setup.
class MeasuredLayers {
 public:
  MeasuredLayers(const ModelConfig& config, const ActivationSetup& setup)
      : config_(config), setup_(setup), blocks_(config) {}

  const LayerBytes& layer(i64 index) {
    const auto [found, is_new] =
        layers_.try_emplace({blocks_.kind_of_layer.at(static_cast<std::size_t>(index)), setup_.fp8.has(index)});
    if (is_new) found->second = measure_layer(config_, setup_, index);
    return found->second;
  }
  const LayerBytes& output() {
    if (!output_) output_ = measure_output(config_, setup_);
    return *output_;
  }

 private:
  const ModelConfig& config_;
  ActivationSetup setup_;
  BlockKinds blocks_;
  std::map<std::pair<std::size_t, bool>, LayerBytes> layers_;  // by kind of block and whether it is in fp8
  std::optional<LayerBytes> output_;
};

namespace {

/// Returns the setup without what does not change the bytes of a layer that is neither recomputed as a whole nor
/// offloaded.
ActivationSetup setup_of_layer(ActivationSetup setup) {
  if (setup.recompute.granularity != Recompute::Granularity::Selective) setup.recompute = {};
  setup.offload = OffloadTier::Device;
  return setup;
}

}  // namespace

LayerSizes::LayerSizes(const ModelConfig& config, const ActivationSetup& setup)
    : LayerSizes(config, setup, std::make_shared<MeasuredLayers>(config, setup_of_layer(setup))) {}

LayerSizes::LayerSizes(const ModelConfig& config, const ActivationSetup& setup,
                       std::shared_ptr<MeasuredLayers> measured)
    : config_(config), setup_(setup), measured_(std::move(measured)) {}

const LayerBytes& LayerSizes::layer(i64 index) {
  return measured_->layer(index);
}

const LayerBytes& LayerSizes::output() {
  return measured_->output();
}

LayerSizes& LayerSizesCache::get(const ActivationSetup& setup) {
  if (const auto found = sizes_.find(setup); found != sizes_.end()) return found->second;
  const ActivationSetup key = setup_of_layer(setup);
  std::shared_ptr<MeasuredLayers>& measured = measured_[key];
  if (!measured) measured = std::make_shared<MeasuredLayers>(config_, key);
  return sizes_.try_emplace(setup, config_, setup, measured).first->second;
}

}  // namespace mcpp
