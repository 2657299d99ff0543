#include "megatron_cpp/setup/model_provider.h"

#include <algorithm>
#include <cmath>

#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/run_summary.h"

namespace mcpp {

namespace {

/// Group size of Chen et al. 2016: groups of sqrt(L) of a stage's L layers minimize saved inputs plus recomputed
/// layers.
i64 sqrt_of_layers(const Config& config) {
  const ParallelConfig& p = config.parallel;
  const i64 stages = p.pipeline_model_parallel_size * p.num_virtual_stages_per_pipeline_rank;
  const double layers = static_cast<double>(config.model.num_layers) / static_cast<double>(stages);
  return static_cast<i64>(std::ceil(std::sqrt(layers)));
}

}  // namespace

Recompute make_recompute(const Config& whole) {
  const TrainingConfig& config = whole.training;
  Recompute recompute;
  recompute.granularity = static_cast<Recompute::Granularity>(config.recompute_granularity);
  const bool by_sqrt = config.recompute_method == RecomputeMethod::Sqrt;
  recompute.method =
      config.recompute_method == RecomputeMethod::Block ? Recompute::Method::Block : Recompute::Method::Uniform;
  recompute.num_layers = by_sqrt ? sqrt_of_layers(whole) : std::max<i64>(1, config.recompute_num_layers);
  recompute.shards_saved_inputs = config.distribute_saved_activations;
  if (config.recompute_granularity != RecomputeGranularity::Selective) return recompute;
  const auto chosen = [&](const char* module) { return std::ranges::count(config.recompute_modules, module) > 0; };
  recompute.core_attn = config.recompute_modules.empty() || chosen("core_attn");
  recompute.layernorm = chosen("layernorm");
  recompute.mlp_act = chosen("mlp_act");
  recompute.moe_act = chosen("moe_act");
  return recompute;
}

Fp8Layers fp8_layers(const Config& config) {
  const TrainingConfig& t = config.training;
  if (t.fp8 == Fp8::None) return {};
  return {.gradients = t.fp8 == Fp8::Hybrid ? Fp8Format::E5M2 : Fp8Format::E4M3,
          .first = t.first_last_layers_bf16 ? t.num_layers_at_start_in_bf16 : 0,
          .end = config.model.num_layers - (t.first_last_layers_bf16 ? t.num_layers_at_end_in_bf16 : 0)};
}

ModelContext model_provider(const Config& config, Session& session) {
  return {.config = config.model,
          .dtype = dtype_of(config.training.precision),
          .seed = static_cast<u64>(config.training.seed),
          .recompute = make_recompute(config),
          .device = *session.device,
          .tp = *session.parallel.tp,
          .sequence_parallel = config.parallel.sequence_parallel && session.parallel.topology.tp() > 1,
          .cp = session.parallel.context_parallel(config.parallel.cp_comm_type),
          .experts = session.parallel.expert_parallel(config.parallel.moe_token_dispatcher_type),
          .fp8 = fp8_layers(config),
          .gelu_epilogue = config.device.gelu_epilogue,
          .profiler = session.profiler.get(),
          .output_rank = session.parallel.output_rank};
}

namespace {

ActivationOffload activation_offload(const Config& config, const Session& session) {
  const OffloadTier tier = config.training.offload_activations;
  if (tier != OffloadTier::File) return {.tier = tier};
  const std::vector<MemoryEstimate> stages = estimate_memory_by_stage(config, session.parallel.world.size());
  return {.tier = tier,
          .folder = config.optimizer.offload_folder,
          .key = "optimizer.offload_folder",
          .bytes = stages[static_cast<std::size_t>(session.parallel.coordinates.pp)].activations_on_disk};
}

}  // namespace

TrainingLayout layout_provider(const Config& config, Session& session) {
  const ParallelConfig& parallel = config.parallel;
  return {.parallel = session.parallel,
          .schedule = parallel.pipeline_schedule,
          .stages = split_stages(stage_split(config)),
          .data_parallel = {.zero_stage = static_cast<int>(parallel.zero_stage),
                            .bucket_elements = parallel.ddp_bucket_size,
                            .overlap_grad_reduce = parallel.overlap_grad_reduce,
                            .has_bf16_grads = config.optimizer.main_grads_dtype == GradDType::Bf16,
                            .overlap_param_gather = parallel.overlap_param_gather,
                            .quantized_weights = parallel.zero_quantized_weights,
                            .grad_reduce_format = parallel.grad_reduce_format(),
                            .power_sgd_rank = parallel.power_sgd_rank,
                            .params = {.tier = config.optimizer.offload_params,
                                       .folder = config.optimizer.offload_folder,
                                       .key = "optimizer.offload_folder",
                                       .supports_snapshots = config.checkpoint.async_save}},
          .saves_asynchronously = config.checkpoint.async_save,
          .activations = activation_offload(config, session)};
}

}  // namespace mcpp
