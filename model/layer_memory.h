// The activations of one layer and of the output on one rank, tensor by tensor. docs/memory.md derives the formulas.
#pragma once
#include <array>
#include <optional>

#include "model/memory.h"

namespace mcpp {

/// Bytes of one microbatch.
/// x [s, b, h] between the parallel regions: what stages send, and full recomputation keeps of a group of layers.
i64 residual_bytes(const ModelConfig& config, const ActivationSetup& setup);
/// Of it, what a rank keeps as the input of recomputed layers.
i64 recompute_input_bytes(const ModelConfig& config, const ActivationSetup& setup);
/// The most that the backward pass of a layer holds beside what it keeps. `puts_off`: where weight gradients wait.
i64 layer_working_bytes(const ModelConfig& config, const ActivationSetup& setup, i64 layer, bool puts_off);
/// What a layer's weight gradients wait with, once its input's gradient is there.
i64 layer_waiting_bytes(const ModelConfig& config, const ActivationSetup& setup, i64 layer);
/// What the output keeps: logits, which become their own gradient, and the norm before them.
i64 output_bytes(const ModelConfig& config, const ActivationSetup& setup);
/// Of it, what its weight's gradient waits with.
i64 output_waiting_bytes(const ModelConfig& config, const ActivationSetup& setup);
i64 output_working_bytes(const ModelConfig& config, const ActivationSetup& setup);

/// All of these of a layer, or of the output.
struct LayerBytes {
  i64 kept = 0;  ///< layer_activation_bytes(), output_bytes()
  i64 working = 0, working_put_off = 0, waiting = 0;
};
/// Worked out once: they are the same of all layers that have experts, or have none, in fp8 or not. Of a configuration
/// that outlives it.
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
  std::array<std::optional<LayerBytes>, 4> kinds_;  // without experts, with; the same in fp8
  std::optional<LayerBytes> output_;
};

StageActivations stage_activations(LayerSizes& sizes, const StageContents& stage);

}  // namespace mcpp
