// Activation memory of a layer and of the output layer on one rank, measured by running the module on the meta device.
#pragma once
#include <map>
#include <memory>
#include <optional>

#include "model/config/block_spec.h"
#include "model/memory.h"

namespace mcpp {

/// Returns the bytes of the hidden states of one microbatch between tensor-parallel regions. This tensor is sent
/// between pipeline stages, and full recomputation saves it once per group of layers.
i64 residual_bytes(const ModelConfig& config, const ActivationSetup& setup);
/// Returns the allocation size of the message from the stage of multi-token prediction to the stage of the output, and
/// of its gradient (StageContents::sends_predictions()).
i64 prediction_bytes(const ModelConfig& config, const ActivationSetup& setup);
/// Returns the bytes of the hidden states of one microbatch that a rank saves as input of a group of recomputed layers.
i64 recompute_input_bytes(const ModelConfig& config, const ActivationSetup& setup);

/// Returns `setup` after resetting the settings for full recomputation and offloading, which do not change the memory
/// of the output layer or of a layer that is neither recomputed nor offloaded.
ActivationSetup setup_of_layer(const ModelConfig& config, ActivationSetup setup);

/// Activation bytes of a transformer layer, or of what follows the layers of a stage (StageContents::output_part()),
/// including the input.
struct LayerBytes {
  i64 saved = 0;    ///< kept from forward to backward, excluding the result
  i64 working = 0;  ///< peak of backward in addition to `saved`
  // If weight gradients are delayed:
  i64 working_delayed_wgrad = 0;  ///< `working`
  i64 waiting = 0;  ///< bytes kept for delayed weight gradients after the input gradient has been computed
};
class MeasuredLayers;
/// LayerBytes of a model's layers in one setup. Each is measured when first used.
class LayerSizes {
 public:
  /// Keeps a reference to `config`.
  LayerSizes(const ModelConfig& config, const ActivationSetup& setup);
  LayerSizes(const ModelConfig& config, const ActivationSetup& setup, std::shared_ptr<MeasuredLayers> measured);

  const ModelConfig& config() const { return config_; }
  const ActivationSetup& setup() const { return setup_; }
  const BlockKinds& blocks() const;
  const LayerBytes& layer(i64 index);
  /// Returns the bytes of what follows the layers of the stage.
  const LayerBytes& output(const StageContents& stage);
  /// Returns recorded_pass_bytes() of the full model (model/recorded_pass_memory.h).
  i64 recorded_pass();

 private:
  const ModelConfig& config_;
  ActivationSetup setup_;
  std::optional<i64> recorded_pass_;
  std::shared_ptr<MeasuredLayers> measured_;
};

/// LayerSizes of a model in many setups. Setups that differ only in the layers that are recomputed or offloaded share
/// measurements. Not thread-safe.
class LayerSizesCache {
 public:
  /// Keeps a reference to `config`.
  explicit LayerSizesCache(const ModelConfig& config) : config_(config) {}
  LayerSizes& get(const ActivationSetup& setup);

 private:
  const ModelConfig& config_;
  std::map<ActivationSetup, std::shared_ptr<MeasuredLayers>> measured_;
  std::map<ActivationSetup, LayerSizes> sizes_;
};

StageActivations stage_activations(LayerSizes& sizes, const StageContents& stage);

}  // namespace mcpp
