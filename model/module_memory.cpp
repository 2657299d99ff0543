#include "model/module_memory.h"

#include "base/strings.h"
#include "model/layer_memory.h"
#include "model/meta_model.h"
#include "tensor/device.h"
#include "tensor/dtype.h"

namespace mcpp {
namespace {

constexpr std::string_view kLayers = "decoder.layers.", kEmbedding = "embedding";

void add_parameter(const Param& param, const ActivationSetup& setup, const StatesPerWeight& states,
                   const RankMemorySpec& share, ModuleMemory& sum) {
  const i64 shards = param.placement.grid == GridKind::Dense ? share.shards() : share.expert_shards();
  const auto part = [&](int stage) {
    return static_cast<double>(param.numel()) / static_cast<double>(share.layout.zero_stage >= stage ? shards : 1);
  };
  const auto accumulate_bytes = static_cast<double>(size_of(accumulate_dtype(setup.dtype)));
  const double values_per_weight =
      (param.matrices.empty() ? states.other_states : states.matrix_states) + states.master(setup.dtype);
  sum.params += part(3) * static_cast<double>(size_of(setup.dtype));
  sum.grads += part(2) * (share.layout.formats.has_bf16_grads() && share.layout.zero_stage >= 2
                              ? static_cast<double>(size_of(DType::BF16))
                              : accumulate_bytes);
  sum.optimizer_state += part(1) * values_per_weight * accumulate_bytes;
}

void add_activations(LayerSizes& sizes, const StageContents& stage, MemoryByModule& modules) {
  const ModelConfig& config = sizes.config();
  const ActivationSetup& setup = sizes.setup();
  const auto result = static_cast<double>(padded_alloc_size(residual_bytes(config, setup)));
  if (stage.has_embedding) modules[embedding_module()].activations += result;
  i64 layer = stage.first_layer;
  for (const LayerGroup& group : layer_groups(setup.recompute, stage.num_layers())) {
    const i64 saved =
        group.is_recomputed ? padded_alloc_size(recompute_input_bytes(config, setup)) : sizes.layer(layer).saved;
    if (setup.offload == OffloadTier::Device) modules[layer_module(layer)].activations += static_cast<double>(saved);
    layer += group.layers;
  }
  if (!stage.has_output_part()) return;
  const auto predictions = static_cast<double>(prediction_bytes(config, setup));
  modules[output_module()].activations += static_cast<double>(sizes.output(stage).saved) -
                                          (stage.receives_predictions() ? predictions : result) +
                                          (stage.sends_predictions() ? predictions : 0);
}

}  // namespace

std::string embedding_module() {
  return std::string(kEmbedding);
}

std::string layer_module(i64 layer) {
  return str(kLayers, layer);
}

std::string output_module() {
  return "output_layer";
}

std::string module_of(std::string_view parameter) {
  if (parameter.starts_with(kLayers)) return std::string(parameter.substr(0, parameter.find('.', kLayers.size())));
  return parameter.starts_with(kEmbedding) ? embedding_module() : output_module();
}

MemoryByModule memory_by_module(const ModelConfig& config, const ActivationSetup& setup, const StatesPerWeight& states,
                                const RankMemorySpec& share) {
  MemoryByModule modules;
  visit_rank_meta_model(config, setup, share, [&](GPTModel& chunk) {
    chunk.visit(
        [&](const Param& param, int) { add_parameter(param, setup, states, share, modules[module_of(param.name)]); });
  });
  LayerSizes sizes(config, setup);
  for (int chunk = 0; chunk < share.schedule.chunks_per_rank; ++chunk)
    add_activations(sizes, share.contents(chunk), modules);
  return modules;
}

}  // namespace mcpp
