#include "megatron_cpp/model_provider.h"

#include <algorithm>

namespace mcpp {

Recompute recompute_of(const TrainingConfig& config) {
  Recompute recompute;
  recompute.granularity = static_cast<Recompute::Granularity>(config.recompute_granularity);
  recompute.method = static_cast<Recompute::Method>(config.recompute_method);
  recompute.num_layers = std::max<i64>(1, config.recompute_num_layers);
  if (config.recompute_granularity != RecomputeGranularity::Selective) return recompute;
  const auto chosen = [&](const char* module) { return std::ranges::count(config.recompute_modules, module) > 0; };
  recompute.core_attn = config.recompute_modules.empty() || chosen("core_attn");
  recompute.layernorm = chosen("layernorm");
  recompute.mlp_act = chosen("mlp_act");
  return recompute;
}

DType dtype_of(Precision precision) {
  return precision == Precision::Bf16 ? DType::BF16 : DType::F32;
}

ModelContext model_provider(const Config& config, Session& session) {
  return {.config = config.model,
          .dtype = dtype_of(config.training.precision),
          .seed = static_cast<u64>(config.training.seed),
          .recompute = recompute_of(config.training),
          .device = *session.device,
          .tp = *session.tp};
}

}  // namespace mcpp
