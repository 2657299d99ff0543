#include "megatron_cpp/setup/model_provider.h"

#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/run_summary.h"

namespace mcpp {

Fp8Layers fp8_layers(const Config& config) {
  const TrainingConfig& t = config.training;
  Fp8Layers layers{.delayed = {.amax_history_len = t.fp8_amax_history_len,
                               .amax_compute_algo = t.fp8_amax_compute_algo,
                               .margin = t.fp8_margin},
                   .moe_fp8_dispatch = t.moe_fp8_dispatch};
  for (const LowPrecisionConfig& table : t.low_precision)
    layers.modules.push_back({table.modules.values(), table.passes()});
  if (t.fp8 == Fp8::None) return layers;
  layers.recipe = PassRecipes::of(recipe_of(t.fp8_recipe), t.fp8 == Fp8::Hybrid ? Fp8Format::E5M2 : Fp8Format::E4M3);
  layers.first = t.first_last_layers_bf16 ? t.num_layers_at_start_in_bf16 : 0;
  layers.end = config.model.num_layers - (t.first_last_layers_bf16 ? t.num_layers_at_end_in_bf16 : 0);
  return layers;
}

ModelContext model_provider(const Config& config, Session& session) {
  const ParallelState& parallel = session.parallel;
  return {.config = config.model,
          .dtype = dtype_of(config.training.precision),
          .seed = static_cast<u64>(config.training.seed),
          .recompute = parallel.layout.recompute,
          .device = *session.device,
          .tp = *parallel.tp,
          .sequence_parallel = parallel.layout.sequence_parallel && parallel.layout.tp > 1,
          .tp_comm_overlap = parallel.layout.tp_comm_overlap,
          .cp = parallel.context_parallel(),
          .experts = parallel.expert_parallel(),
          .fp8 = fp8_layers(config),
          .gelu_epilogue = config.device.gelu_epilogue,
          .graph_warmup_steps =
              config.device.cuda_graph_impl == CudaGraphImpl::None ? 0 : config.device.cuda_graph_warmup_steps,
          .profiler = session.profiler.get(),
          .final_norm_rank = parallel.final_norm_rank};
}

TrainingStorage storage_provider(const Config& config, const Session& session) {
  constexpr const char* kKey = "optimizer.offload_folder";
  const std::string& folder = config.optimizer.offload_folder;
  const OffloadTier tier = config.training.offload_activations;
  TrainingStorage storage{.params = {.folder = folder, .key = kKey, .supports_snapshots = config.checkpoint.async_save},
                          .activations = {.tier = tier},
                          .saves_asynchronously = config.checkpoint.async_save};
  if (tier != OffloadTier::File) return storage;
  const std::vector<MemoryEstimate> stages = estimate_memory_by_stage(config, session.parallel.world.size());
  storage.activations = {
      .tier = tier,
      .folder = folder,
      .key = kKey,
      .bytes = stages[static_cast<std::size_t>(session.parallel.coordinates.pp)].activations_on_disk};
  return storage;
}

}  // namespace mcpp
