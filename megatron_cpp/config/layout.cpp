#include "megatron_cpp/config/layout.h"

#include <set>

#include "base/check.h"
#include "model/config/layout_rules.h"

namespace mcpp {
namespace {

LayoutRules rules_of(const Config& config, int world_size) {
  LayoutRules rules = layout_rules(config.model);
  rules.world_size = world_size;
  rules.sizes = parallel_sizes(config);
  rules.stages = stage_split(config);
  rules.sequence_parallel = config.parallel.sequence_parallel && config.parallel.tensor_model_parallel_size > 1;
  rules.micro_batch_size = config.training.micro_batch_size;
  return rules;
}

/// Checks rules that must hold for each global batch size of the run.
void add_batch_problems(const Config& config, int world_size, std::set<std::string>& errors) {
  const ParallelConfig& p = config.parallel;
  const LayoutRules common = rules_of(config, world_size);
  for (const BatchSizeStep& step : config.batch_sizes()) {
    LayoutRules rules = common;
    rules.global_batch_size = step.batch_size;
    const std::vector<std::string> conflicts = layout_conflicts(rules);
    errors.insert(conflicts.begin(), conflicts.end());
    if (!conflicts.empty() || world_size == kAnyWorld) continue;
    const auto problems = schedule_conflicts(p.pipeline_schedule, static_cast<int>(p.pipeline_model_parallel_size),
                                             static_cast<int>(p.num_virtual_stages_per_pipeline_rank),
                                             static_cast<int>(microbatches_of(step.batch_size, config, world_size)));
    errors.insert(problems.begin(), problems.end());
  }
}

/// Returns hierarchy sizes that these heads allow, "such as [2, 4]", or what to do if there are none.
std::string possible_hierarchy(const Config& config) {
  const i64 cp = config.parallel.context_parallel_size, tp = config.parallel.tensor_model_parallel_size;
  const i64 heads = config.model.num_attention_heads.first() / tp,
            groups = std::max<i64>(config.model.query_groups(0) / tp, 1);
  for (i64 ranks = 2; ranks < cp; ++ranks) {
    if (cp % ranks == 0 && can_exchange_heads(config.model, ranks, tp))
      return str(", such as [", ranks, ", ", cp / ranks, "]");
  }
  return str("; no two such sizes above 1 are possible for ", heads, " heads in ", groups,
             " query groups on a tensor-parallel rank: use \"p2p\" or \"all_gather\"");
}

void add_context_problems(const Config& config, std::set<std::string>& errors) {
  const ParallelConfig& p = config.parallel;
  const std::vector<i64>& sizes = p.hierarchical_context_parallel_sizes;
  const bool is_hierarchical = p.cp_comm_type == CpCommType::A2aP2p;
  if (is_hierarchical && (sizes.size() != 2 || sizes[0] * sizes[1] != p.context_parallel_size))
    errors.insert(
        str("cp_comm_type = \"a2a+p2p\" needs hierarchical_context_parallel_sizes = [ranks that exchange heads, "
            "members of the ring] with a product of context_parallel_size = ",
            p.context_parallel_size, possible_hierarchy(config)));
  if (!is_hierarchical && !sizes.empty())
    errors.insert(str("hierarchical_context_parallel_sizes has no effect with cp_comm_type = \"",
                      enum_name(p.cp_comm_type), "\"; leave it empty, or use \"a2a+p2p\""));
}

void add_zero_problems(const Config& config, std::set<std::string>& errors) {
  const ParallelConfig& p = config.parallel;
  if (p.zero_stage >= 2 && row_of(p.pipeline_schedule).splits_backward)
    errors.insert(
        str("zero_stage = ", p.zero_stage, " reduces gradients at the end of each layer's backward pass, but ",
            enum_name(p.pipeline_schedule), " computes them later; use zero_stage 0 or 1, or pipeline_schedule ",
            kinds_with_fused_backward()));
  const i64 instances = p.num_distributed_optimizer_instances;
  if (instances > 1 && p.zero_stage == 0)
    errors.insert(
        str("num_distributed_optimizer_instances = ", instances,
            " has no effect with zero_stage = 0, where every rank holds all state; use zero_stage 1, 2 or 3"));
}

constexpr const char* kGradientsInBytes = "zero_quantized_gradients = true";
constexpr const char* kGradientsInBf16 = "grad_reduce_dtype = \"bf16\"";

/// At most one of the formats for gradients may be selected.
void add_gradient_problems(const ParallelConfig& p, std::set<std::string>& errors) {
  const auto exclude = [&](const std::string& first, const char* second) {
    errors.insert(str(first, " and ", second, " are two ways to send the same gradients; use one of them"));
  };
  const bool in_bf16 = p.grad_reduce_dtype == GradDType::Bf16;
  const std::string factors = str("power_sgd_rank = ", p.power_sgd_rank);
  if (p.power_sgd_rank > 0 && p.zero_quantized_gradients) exclude(factors, kGradientsInBytes);
  if (p.power_sgd_rank > 0 && in_bf16) exclude(factors, kGradientsInBf16);
  if (p.zero_quantized_gradients && in_bf16) exclude(kGradientsInBytes, kGradientsInBf16);
  if (p.power_sgd_rank > 0 && p.zero_stage >= 2)
    errors.insert(str(factors, " needs unsharded gradients, but zero_stage = ", p.zero_stage,
                      " shards them; use zero_stage 0 or 1, or zero_quantized_gradients"));
  if (p.power_sgd_start_iter > 0 && p.power_sgd_rank == 0)
    errors.insert(str("power_sgd_start_iter = ", p.power_sgd_start_iter,
                      " is only read with power_sgd_rank; set that, or remove it"));
}

void add_traffic_problems(const Config& config, std::set<std::string>& errors) {
  const ParallelConfig& p = config.parallel;
  const auto needs_zero = [&](bool is_set, const char* setting, const char* why) {
    if (is_set && p.zero_stage == 0)
      errors.insert(str(setting, " has no effect with zero_stage = 0, ", why, "; use zero_stage 1, 2 or 3"));
  };
  constexpr const char* kAllGradients = "where every rank receives all gradients";
  needs_zero(p.zero_quantized_weights, "zero_quantized_weights = true", "where no weights are sent");
  needs_zero(p.zero_quantized_gradients, kGradientsInBytes, kAllGradients);
  needs_zero(p.grad_reduce_dtype == GradDType::Bf16, kGradientsInBf16, kAllGradients);
  add_gradient_problems(p, errors);
  const bool sums_in_steps = p.zero_stage > 0 && p.grad_reduce_format() != GradReduceFormat::Full;
  if (p.zero_hpz_partition_size > 1 && p.zero_stage != 3 && !sums_in_steps)
    errors.insert(
        str("zero_hpz_partition_size = ", p.zero_hpz_partition_size, " has no effect with zero_stage = ", p.zero_stage,
            ", where every rank has all weights; use zero_stage 3",
            p.zero_stage == 0
                ? ""
                : str(", or ", kGradientsInBf16, " or ", kGradientsInBytes, ", which it splits into two steps")));
}

/// A model without experts has no expert tensor parallelism.
i64 expert_tensor_parallel_size(const Config& config) {
  if (config.model.moe.num_experts == 0) return 1;
  const ParallelConfig& p = config.parallel;
  return p.expert_tensor_parallel_size > 0 ? p.expert_tensor_parallel_size : p.tensor_model_parallel_size;
}

void add_expert_problems(const Config& config, std::set<std::string>& errors) {
  if (config.model.moe.num_experts > 0) return;
  const ParallelConfig &p = config.parallel, defaults;
  const auto only_with_experts = [&](bool is_set, const char* key) {
    if (is_set) errors.insert(str(key, " needs a model with experts (model.num_experts)"));
  };
  only_with_experts(p.expert_tensor_parallel_size != 0, "expert_tensor_parallel_size");
  only_with_experts(p.moe_token_dispatcher_type != defaults.moe_token_dispatcher_type, "moe_token_dispatcher_type");
}

/// Returns the number of neighboring context-parallel ranks that exchange heads.
i64 context_parallel_heads(const ParallelConfig& p) {
  if (p.cp_comm_type == CpCommType::A2a) return p.context_parallel_size;
  const std::vector<i64>& sizes = p.hierarchical_context_parallel_sizes;
  return p.cp_comm_type == CpCommType::A2aP2p && !sizes.empty() ? sizes[0] : 1;
}

}  // namespace

ParallelSizes parallel_sizes(const Config& config) {
  return {.tensor_model_parallel_size = config.parallel.tensor_model_parallel_size,
          .pipeline_model_parallel_size = config.parallel.pipeline_model_parallel_size,
          .context_parallel_size = config.parallel.context_parallel_size,
          .context_parallel_heads = context_parallel_heads(config.parallel),
          .has_experts = config.model.moe.num_experts > 0,
          .expert_model_parallel_size = config.parallel.expert_model_parallel_size,
          .expert_tensor_parallel_size = expert_tensor_parallel_size(config),
          .num_distributed_optimizer_instances = config.parallel.num_distributed_optimizer_instances,
          .zero_hpz_partition_size = config.parallel.zero_hpz_partition_size};
}

i64 expert_data_size(const Config& config, int world_size) {
  return parallel_sizes(config).expert_data_parallel_size(world_size);
}

i64 data_parallel_size(const Config& config, int world_size) {
  return parallel_sizes(config).data_parallel_size(world_size);
}

i64 data_context_size(const Config& config, int world_size) {
  return data_parallel_size(config, world_size) * config.parallel.context_parallel_size;
}

i64 microbatches_of(i64 global_batch_size, const Config& config, int world_size) {
  return global_batch_size / (config.training.micro_batch_size * data_parallel_size(config, world_size));
}

i64 microbatches_per_step(const Config& config, int world_size) {
  return microbatches_of(config.batch_sizes().back().batch_size, config, world_size);
}

StageSplit stage_split(const Config& config) {
  const ParallelConfig& p = config.parallel;
  return {.num_layers = config.model.num_layers,
          .pipeline_model_parallel_size = p.pipeline_model_parallel_size,
          .virtual_stages = p.num_virtual_stages_per_pipeline_rank,
          .decoder_first_pipeline_num_layers = p.decoder_first_pipeline_num_layers,
          .decoder_last_pipeline_num_layers = p.decoder_last_pipeline_num_layers,
          .pipeline_model_parallel_layout = p.pipeline_model_parallel_layout,
          .placement = row_of(p.pipeline_schedule).placement};
}

Schedule schedule_of(const Config& config, int microbatches) {
  const ParallelConfig& p = config.parallel;
  return make_schedule(p.pipeline_schedule, static_cast<int>(p.pipeline_model_parallel_size), microbatches,
                       static_cast<int>(p.num_virtual_stages_per_pipeline_rank));
}

int output_rank(const Config& config) {
  const ParallelConfig& p = config.parallel;
  const StageMap map{.ranks = static_cast<int>(p.pipeline_model_parallel_size),
                     .chunks_per_rank = static_cast<int>(p.num_virtual_stages_per_pipeline_rank),
                     .placement = row_of(p.pipeline_schedule).placement};
  return map.rank_of(map.stages() - 1);
}

std::vector<std::string> layout_problems(const Config& config, int world_size) {
  std::set<std::string> errors;
  add_context_problems(config, errors);
  add_expert_problems(config, errors);
  add_batch_problems(config, world_size, errors);
  add_zero_problems(config, errors);
  add_traffic_problems(config, errors);
  return {errors.begin(), errors.end()};
}

void check_layout(const Config& config, int world_size) {
  const std::vector<std::string> problems = layout_problems(config, world_size);
  check_input(problems.empty(), "this configuration cannot run",
              world_size == kAnyWorld ? std::string() : str(" on ", world_size, world_size == 1 ? " rank" : " ranks"),
              ":\n  parallel: ", join(problems, "\n  parallel: "));
}

}  // namespace mcpp
