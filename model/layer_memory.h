// Activation memory of a layer and of the output on one rank, tensor by tensor; docs/memory_model.md has the formulas.
#pragma once
#include <optional>
#include <vector>

#include "model/config/block_spec.h"
#include "model/memory.h"

namespace mcpp {

/// Returns the bytes of x [s, b, h] between the parallel regions, which is sent between stages and saved by full
/// recomputation for a group of layers. All sizes are those of one microbatch.
i64 residual_bytes(const ModelConfig& config, const ActivationSetup& setup);
/// Returns the bytes of x that a rank saves as the input of recomputed layers.
i64 recompute_input_bytes(const ModelConfig& config, const ActivationSetup& setup);
/// Returns the peak of a layer's backward pass in addition to its saved activations. `delays_wgrad`: weight gradients
/// are delayed.
i64 layer_working_bytes(const ModelConfig& config, const ActivationSetup& setup, i64 layer, bool delays_wgrad);
/// Returns the bytes kept by a layer's delayed weight gradients after its input gradient has been computed.
i64 layer_delayed_wgrad_bytes(const ModelConfig& config, const ActivationSetup& setup, i64 layer);
/// Returns the bytes kept by the output layer: logits, which backward overwrites with their gradient, and the norm.
i64 output_bytes(const ModelConfig& config, const ActivationSetup& setup);
/// Returns the bytes kept by the output's delayed weight gradient.
i64 output_delayed_wgrad_bytes(const ModelConfig& config, const ActivationSetup& setup);
i64 output_working_bytes(const ModelConfig& config, const ActivationSetup& setup);

/// Bytes of a transformer layer, or of the output layer.
struct LayerBytes {
  i64 kept = 0;  ///< layer_activation_bytes(), output_bytes()
  i64 working = 0, working_delayed_wgrad = 0, waiting = 0;
};
/// Cache of LayerBytes, which depend only on the block of a layer and whether it is in fp8.
class LayerSizes {
 public:
  LayerSizes(const ModelConfig& config, const ActivationSetup& setup);

  const ModelConfig& config() const { return config_; }
  const ActivationSetup& setup() const { return setup_; }
  const LayerBytes& layer(i64 index);
  const LayerBytes& output();

 private:
  const ModelConfig& config_;
  ActivationSetup setup_;
  /// Layers of the same block and precision, of which the first stands for all.
  struct Kind {
    i64 layer;
    BlockSpec block;
    bool is_fp8;
    std::optional<LayerBytes> bytes;
  };
  std::vector<Kind> kinds_;
  std::vector<std::size_t> kind_of_layer_;
  std::optional<LayerBytes> output_;
};

StageActivations stage_activations(LayerSizes& sizes, const StageContents& stage);

}  // namespace mcpp
