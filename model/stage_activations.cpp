#include <algorithm>

#include "base/integer_math.h"
#include "model/layer_memory.h"
#include "model/memory.h"
#include "nn/offload/file_activations.h"
#include "tensor/device.h"

namespace mcpp {
namespace {

/// Group of layers whose activations are offloaded and fetched together.
struct ActivationUnit {
  i64 bytes = 0;                  ///< saved or offloaded
  i64 recomputed = 0;             ///< additional bytes during backward
  i64 working = 0;                ///< peak in addition to all of these
  i64 working_delayed_wgrad = 0;  ///< `working` with delayed weight gradients
  i64 waiting = 0;                ///< kept by delayed weight gradients
};

std::vector<ActivationUnit> activation_units(LayerSizes& sizes, const StageContents& stage) {
  const i64 input = padded_alloc_size(recompute_input_bytes(sizes.config(), sizes.setup()));
  std::vector<ActivationUnit> units;
  i64 layer = stage.first_layer;
  for (const LayerGroup& group : layer_groups(sizes.setup().recompute, stage.num_layers())) {
    ActivationUnit unit;
    i64 kept = 0;
    for (const i64 end = layer + group.layers; layer < end; ++layer) {
      const LayerBytes& bytes = sizes.of(layer);
      kept += bytes.kept;
      unit.working = std::max(unit.working, bytes.working);
      unit.working_delayed_wgrad = std::max(unit.working_delayed_wgrad, bytes.working_delayed_wgrad);
      unit.waiting += bytes.waiting;
    }
    unit.bytes = group.is_recomputed ? input : kept;
    unit.recomputed = group.is_recomputed ? kept - input : 0;
    units.push_back(unit);
  }
  return units;
}

/// Peak of a pass with delayed weight gradients, from the last unit to the first, in addition to saved activations that
/// are not offloaded.
i64 peak_with_delayed_wgrad(const std::vector<ActivationUnit>& units, bool is_offloaded, i64 after) {
  i64 before = 0, peak = 0;
  for (const ActivationUnit& unit : units) before += is_offloaded ? 0 : unit.bytes;
  const i64 kept = before;
  for (std::size_t i = units.size(); i-- > 0;) {
    const ActivationUnit& unit = units[i];
    const i64 own = (is_offloaded ? unit.bytes : 0) + unit.recomputed + unit.working_delayed_wgrad;
    peak = std::max(peak, before + after + own);
    before -= is_offloaded ? 0 : unit.bytes;
    after += unit.waiting;
  }
  return std::max(peak, after) - kept;
}

}  // namespace

StageActivations stage_activations(const ModelConfig& config, const ActivationSetup& setup,
                                   const StageContents& stage) {
  LayerSizes sizes(config, setup);
  return stage_activations(sizes, stage);
}

StageActivations stage_activations(LayerSizes& sizes, const StageContents& stage) {
  const ActivationSetup& setup = sizes.setup();
  const bool is_offloaded = setup.offload != OffloadTier::Device;
  const std::vector<ActivationUnit> units = activation_units(sizes, stage);
  StageActivations sum;
  i64 freed = 0;  // saved bytes already freed by later units
  for (auto it = units.rbegin(); it != units.rend(); ++it) {
    const ActivationUnit& unit = *it;
    // While this unit runs backward, earlier units are still saved or offloaded, and this one is on the device in both
    // cases.
    const i64 own = unit.working + unit.recomputed + (is_offloaded ? unit.bytes : 0);
    sum.working = std::max(sum.working, own - freed);
    sum.waiting += unit.waiting;
    if (!is_offloaded) {
      freed += unit.bytes;
      continue;
    }
    sum.offloaded += unit.bytes, sum.blocks += ceil_div(unit.bytes, FileActivations::kBlock);
    sum.largest_unit = std::max(sum.largest_unit, unit.bytes);
  }
  sum.kept = freed;
  if (stage.has_embedding) sum.waiting += padded_alloc_size(residual_bytes(sizes.config(), setup));
  const LayerBytes output = stage.has_output ? sizes.of_output() : LayerBytes();
  sum.working_delayed_wgrad = peak_with_delayed_wgrad(units, is_offloaded, output.waiting);
  if (!stage.has_output) return sum;
  sum.kept += output.kept;
  sum.waiting += output.waiting;
  sum.working = std::max(sum.working - output.kept, output.working);
  sum.working_delayed_wgrad = std::max(sum.working_delayed_wgrad - output.kept, output.working_delayed_wgrad);
  return sum;
}

}  // namespace mcpp
