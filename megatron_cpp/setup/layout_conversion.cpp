#include "megatron_cpp/setup/layout_conversion.h"

#include "data/dataset/blend.h"
#include "data/dataset/dataset_info.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/model_provider.h"
#include "megatron_cpp/setup/run_summary.h"

namespace mcpp {
namespace {

Rounding rounding_of(const Config& config) {
  const ParallelConfig& p = config.parallel;
  return {.packed_weights = p.zero_quantized_weights,
          .gradients = p.grad_reduce_format(),
          .bf16_gradients = config.optimizer.main_grads_dtype == GradDType::Bf16,
          .power_sgd_rank = p.power_sgd_rank};
}

void set_rounding(Config& config, const Rounding& rounding) {
  config.parallel.zero_quantized_weights = rounding.packed_weights;
  config.parallel.set_grad_reduce_format(rounding.gradients);
  config.parallel.power_sgd_rank = rounding.power_sgd_rank;
  config.optimizer.main_grads_dtype = rounding.bf16_gradients ? GradDType::Bf16 : GradDType::Fp32;
}

/// Sets where the layout stores its tensors; clears the offload folder if nothing is on disk any more.
void set_offload_tiers(Config& config, const Layout& layout) {
  const OptimizerConfig defaults;
  OptimizerConfig& o = config.optimizer;
  const bool was_read = config.offloads_to_disk();
  o.offload = layout.states_tier;
  o.offload_fraction =
      layout.effective_offloaded_fraction() > 0 ? layout.offloaded_state_fraction : defaults.offload_fraction;
  if (o.offload == OffloadTier::Device) o.offload_segment_size = defaults.offload_segment_size;
  o.offload_params = layout.params_tier;
  config.training.offload_activations = layout.activations_tier;
  if (was_read && !config.offloads_to_disk()) o.offload_folder.clear();
}

}  // namespace

namespace {

ProductType product_type(const TrainingConfig& training) {
  if (training.fp8 != Fp8::None) return ProductType::Fp8;
  return training.precision == Precision::Fp32 ? ProductType::Fp32 : ProductType::Bf16;
}

/// Returns the mean document length of the training datasets, according to their .json files.
double document_tokens(const DataConfig& data) {
  const bool has_own = !data.train_data_path.empty();
  const std::vector<std::string>& paths = has_own ? data.train_data_path : data.data_path;
  if (data.mock_data || paths.empty()) return 0;
  const BlendList blend = parse_blend_list(paths, has_own ? "data.train_data_path" : "data.data_path");
  return mean_document_tokens(blend.prefixes, blend.weights);
}

}  // namespace

void check_fp8_rate(const Hardware& hardware, const Workload& work) {
  check_input(
      work.products != ProductType::Fp8 || hardware.device.fp8_attained > 0, "training.fp8: ", hardware.device.name,
      " has no fp8 (device.fp8_attained of its file is 0), and what a CPU emulates is not ", "predicted; leave it out");
}

Workload make_workload(const Config& config) {
  return {.model = config.model,
          .dtype = dtype_of(config.training.precision),
          .products = product_type(config.training),
          .global_batch_size = config.batch_sizes().back().batch_size,
          .states = states_per_weight(config),
          .bucket_elements = config.parallel.ddp_bucket_size,
          .segment_elements = config.optimizer.offload_segment_size,
          .rounding = rounding_of(config),
          .can_round_gradients = config.optimizer.can_round_gradients(),
          .document_tokens = config.data.reset_attention_mask ? document_tokens(config.data) : 0};
}

Layout layout_from_config(const Config& config, int world_size) {
  const ParallelConfig& p = config.parallel;
  return {.world_size = world_size,
          .tp = p.tensor_model_parallel_size,
          .cp = p.context_parallel_size,
          .pp = p.pipeline_model_parallel_size,
          .sequence_parallel = p.sequence_parallel,
          .cp_comm_type = p.cp_comm_type,
          .cp_heads = parallel_sizes(config).context_parallel_heads,
          .ep = p.expert_model_parallel_size,
          .etp = parallel_sizes(config).expert_tensor_parallel_size,
          .dispatcher = p.moe_token_dispatcher_type,
          .schedule = p.pipeline_schedule,
          .chunks = p.num_virtual_stages_per_pipeline_rank,
          .first_layers = p.decoder_first_pipeline_num_layers,
          .last_layers = p.decoder_last_pipeline_num_layers,
          .stages = p.pipeline_model_parallel_layout,
          .zero_stage = static_cast<int>(p.zero_stage),
          .instances = p.num_distributed_optimizer_instances,
          .micro_batch_size = config.training.micro_batch_size,
          .recompute = make_recompute(config),
          .states_tier = config.optimizer.offload,
          .offloaded_state_fraction = config.optimizer.offload_fraction,
          .params_tier = config.optimizer.offload_params,
          .activations_tier = config.training.offload_activations,
          .node_ranks = p.zero_hpz_partition_size,
          .rounding = rounding_of(config)};
}

Config apply_layout(Config config, const Layout& layout) {
  ParallelConfig& p = config.parallel;
  p.tensor_model_parallel_size = layout.tp;
  p.context_parallel_size = layout.cp;
  p.pipeline_model_parallel_size = layout.pp;
  p.sequence_parallel = layout.sequence_parallel;
  p.cp_comm_type = layout.cp_comm_type;
  p.hierarchical_context_parallel_sizes.clear();
  if (layout.cp_comm_type == CpCommType::A2aP2p)
    p.hierarchical_context_parallel_sizes = {layout.cp_heads, layout.cp / layout.cp_heads};
  p.expert_model_parallel_size = layout.ep;
  p.expert_tensor_parallel_size = config.model.moe.num_experts > 0 ? layout.etp : 0;
  p.moe_token_dispatcher_type = layout.dispatcher;
  p.pipeline_schedule = layout.schedule;
  p.num_virtual_stages_per_pipeline_rank = layout.chunks;
  p.decoder_first_pipeline_num_layers = layout.first_layers;
  p.decoder_last_pipeline_num_layers = layout.last_layers;
  p.pipeline_model_parallel_layout = layout.stages;
  p.zero_stage = layout.zero_stage;
  p.num_distributed_optimizer_instances = layout.instances;
  p.zero_hpz_partition_size = layout.node_ranks;
  set_rounding(config, layout.rounding);
  set_offload_tiers(config, layout);
  TrainingConfig& t = config.training;
  t.micro_batch_size = layout.micro_batch_size;
  t.recompute_granularity = static_cast<RecomputeGranularity>(layout.recompute.granularity);
  const bool is_part = layout.recompute.method == Recompute::Method::Block;
  t.recompute_method = is_part ? RecomputeMethod::Block : RecomputeMethod::Uniform;
  t.recompute_num_layers = is_part || layout.recompute.num_layers > 1 ? layout.recompute.num_layers : 0;
  t.distribute_saved_activations = layout.recompute.shards_saved_inputs;
  t.recompute_modules.clear();
  if (layout.recompute.granularity == Recompute::Granularity::Selective) {
    const Recompute& r = layout.recompute;
    for (const auto& [is_chosen, name] : {std::pair(r.core_attn, "core_attn"), std::pair(r.layernorm, "layernorm"),
                                          std::pair(r.mlp_act, "mlp_act"), std::pair(r.moe_act, "moe_act")})
      if (is_chosen) t.recompute_modules.emplace_back(name);
  }
  return config;
}

}  // namespace mcpp
