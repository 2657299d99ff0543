// Activation memory of a layer and of the output on one rank, tensor by tensor; docs/memory_model.md has the formulas.
#pragma once
#include <array>
#include <optional>

#include "model/memory.h"

namespace mcpp {

/// All sizes are bytes of one microbatch. x [s, b, h] between the parallel regions: sent between stages, and kept by
/// full recomputation for a group of layers.
i64 residual_bytes(const ModelConfig& config, const ActivationSetup& setup);
/// Bytes of it that a rank keeps as the input of recomputed layers.
i64 recompute_input_bytes(const ModelConfig& config, const ActivationSetup& setup);
/// Peak of a layer's backward pass in addition to its saved activations. `delays_wgrad`: weight gradients are delayed.
i64 layer_working_bytes(const ModelConfig& config, const ActivationSetup& setup, i64 layer, bool delays_wgrad);
/// Bytes kept by a layer's delayed weight gradients after its input gradient has been computed.
i64 layer_delayed_wgrad_bytes(const ModelConfig& config, const ActivationSetup& setup, i64 layer);
/// Bytes kept by the output: logits, which become their own gradient, and its norm.
i64 output_bytes(const ModelConfig& config, const ActivationSetup& setup);
/// Bytes kept by its delayed weight gradient.
i64 output_delayed_wgrad_bytes(const ModelConfig& config, const ActivationSetup& setup);
i64 output_working_bytes(const ModelConfig& config, const ActivationSetup& setup);

/// Sizes of a layer, or of the output.
struct LayerBytes {
  i64 kept = 0;  ///< layer_activation_bytes(), output_bytes()
  i64 working = 0, working_delayed_wgrad = 0, waiting = 0;
};
/// Cache of LayerBytes, which depend only on whether a layer has experts and whether it is in fp8.
class LayerSizes {
 public:
  LayerSizes(const ModelConfig& config, const ActivationSetup& setup) : config_(config), setup_(setup) {}

  const ModelConfig& config() const { return config_; }
  const ActivationSetup& setup() const { return setup_; }
  const LayerBytes& of(i64 layer);
  const LayerBytes& of_output();

 private:
  const ModelConfig& config_;
  ActivationSetup setup_;
  std::array<std::optional<LayerBytes>, 4> kinds_;  // without experts, with experts; then both in fp8
  std::optional<LayerBytes> output_;
};

StageActivations stage_activations(LayerSizes& sizes, const StageContents& stage);

}  // namespace mcpp
