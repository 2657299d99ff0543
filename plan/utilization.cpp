#include "plan/utilization.h"

#include "base/integer_math.h"
#include "model/flops.h"

namespace mcpp {
namespace {

/// Returns the fraction by which recomputation increases the model's operations: a forward pass is a third of all.
double recomputed_fraction(const ModelConfig& m, const Layout& layout) {
  using enum RecomputeGranularity;
  const double all = flops_per_token(m), output = 6 * real(m.hidden_size) * real(m.padded_vocab_size());
  if (layout.recompute.granularity == Full) {
    double layers = 0;
    for (const StageContents& stage : split_stages(layout, m.num_layers))
      for (const LayerGroup& group : layer_groups(layout.recompute, stage.num_layers()))
        layers += group.is_recomputed ? real(group.layers) : 0;
    return (all - output) * layers / real(m.num_layers) / 3 / all;
  }
  if (layout.recompute.granularity != Selective || !layout.recompute.core_attn) return 0;
  return attention_flops_per_token(m) / all;
}

}  // namespace

double model_tflops(const PredictionInput& input, double step_seconds) {
  return flops_per_batch(input.work.model, input.work.global_batch_size) / step_seconds /
         static_cast<double>(input.layout.world_size()) / 1e12;
}

double model_flops_utilization(const PredictionInput& input, double step_seconds) {
  return 1e12 * model_tflops(input, step_seconds) / input.hardware.peak_flops(input.work.gemms());
}

double hardware_flops_utilization(const PredictionInput& input, double step_seconds) {
  return model_flops_utilization(input, step_seconds) * (1 + recomputed_fraction(input.work.model, input.layout));
}

}  // namespace mcpp
