#include "megatron_cpp/config/layout.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/check.h"
#include "model/config/block_spec.h"

namespace mcpp {
namespace {

/// Group size of Chen et al. 2016: groups of sqrt(L) of a stage's L layers minimize saved inputs plus recomputed
/// layers.
i64 sqrt_of_layers(const Config& config) {
  const double layers =
      static_cast<double>(config.model.num_layers) / static_cast<double>(config.parallel.pp * config.parallel.chunks);
  return static_cast<i64>(std::ceil(std::sqrt(layers)));
}

Recompute make_recompute(const Config& config) {
  const TrainingConfig& t = config.training;
  const bool by_sqrt = t.recompute_method == RecomputeMethod::Sqrt;
  Recompute recompute{
      .granularity = t.recompute_granularity,
      .method = t.recompute_method == RecomputeMethod::Block ? Recompute::Method::Block : Recompute::Method::Uniform,
      .num_layers = by_sqrt ? sqrt_of_layers(config) : std::max<i64>(1, t.recompute_num_layers),
      .shards_saved_inputs = t.distribute_saved_activations};
  if (t.recompute_granularity != RecomputeGranularity::Selective) return recompute;
  const auto chosen = [&](const char* module) { return std::ranges::count(t.recompute_modules, module) > 0; };
  recompute.core_attn = t.recompute_modules.empty() || chosen("core_attn");
  recompute.layernorm = chosen("layernorm");
  recompute.mlp_act = chosen("mlp_act");
  recompute.moe_act = chosen("moe_act");
  return recompute;
}

void set_recompute(TrainingConfig& t, const Recompute& r) {
  t.recompute_granularity = r.granularity;
  const bool is_part = r.method == Recompute::Method::Block;
  t.recompute_method = is_part ? RecomputeMethod::Block : RecomputeMethod::Uniform;
  t.recompute_num_layers = is_part || r.num_layers > 1 ? r.num_layers : 0;
  t.distribute_saved_activations = r.shards_saved_inputs;
  t.recompute_modules.clear();
  if (r.granularity != Recompute::Granularity::Selective) return;
  for (const auto& [is_chosen, name] : {std::pair(r.core_attn, "core_attn"), std::pair(r.layernorm, "layernorm"),
                                        std::pair(r.mlp_act, "mlp_act"), std::pair(r.moe_act, "moe_act")})
    if (is_chosen) t.recompute_modules.emplace_back(name);
}

}  // namespace

Layout layout_of(const Config& config, i64 world_size) {
  Layout layout = config.parallel;
  if (config.model.moe.num_experts > 0) layout.etp = layout.expert_tp();
  layout.dp = world_size / layout.ranks_per_sample();
  layout.formats.main_grads_dtype = config.optimizer.main_grads_dtype;
  layout.micro_batch_size = config.training.micro_batch_size;
  layout.recompute = make_recompute(config);
  layout.states_tier = config.optimizer.offload;
  layout.offloaded_state_fraction = config.optimizer.offload_fraction;
  layout.params_tier = config.optimizer.offload_params;
  layout.activations_tier = config.training.offload_activations;
  return layout;
}

Config apply_layout(Config config, const Layout& layout) {
  const OptimizerConfig defaults;
  OptimizerConfig& o = config.optimizer;
  const bool used_disk = config.offloads_to_disk();
  static_cast<Layout&>(config.parallel) = layout;
  o.main_grads_dtype = layout.formats.main_grads_dtype;
  o.offload = layout.states_tier;
  o.offload_fraction =
      layout.effective_offloaded_fraction() > 0 ? layout.offloaded_state_fraction : defaults.offload_fraction;
  if (o.offload == OffloadTier::Device) o.offload_segment_size = defaults.offload_segment_size;
  o.offload_params = layout.params_tier;
  config.training.offload_activations = layout.activations_tier;
  config.training.micro_batch_size = layout.micro_batch_size;
  set_recompute(config.training, layout.recompute);
  if (used_disk && !config.offloads_to_disk()) o.offload_folder.clear();
  return config;
}

Config with_dispatch_nodes(Config config, i64 node_ranks) {
  if (config.parallel.dispatcher == TokenDispatcherType::Hierarchical && config.parallel.dispatch_node_ranks == 0)
    config.parallel.dispatch_node_ranks = node_ranks;
  return config;
}

i64 microbatches_per_step(const Config& config, i64 world_size) {
  return layout_of(config, world_size).microbatches(config.batch_sizes().back().batch_size);
}

std::vector<std::string> layout_problems(const Config& config, int world_size) {
  const ModelSizes model = model_sizes(config.model);
  Layout layout = config.parallel;
  layout.micro_batch_size = config.training.micro_batch_size;
  std::set<std::string> problems;
  for (const BatchSizeStep& step : config.batch_sizes())
    for (std::string& problem : layout_conflicts(model, layout, world_size, step.batch_size))
      problems.insert(std::move(problem));
  if (!config.training.eval_tasks.empty() && layout.chunks > 1)
    problems.insert(str("num_virtual_stages_per_pipeline_rank = ", layout.chunks,
                        ": training.eval_tasks needs one stage per pipeline rank; score checkpoints with `evaluate "
                        "--tasks` instead"));
  return {problems.begin(), problems.end()};
}

void check_layout(const Config& config, int world_size) {
  const std::vector<std::string> problems = layout_problems(config, world_size);
  check_input(problems.empty(), "this configuration cannot run",
              world_size == kAnyWorld ? std::string() : str(" on ", world_size, world_size == 1 ? " rank" : " ranks"),
              ":\n  parallel: ", join(problems, "\n  parallel: "));
}

}  // namespace mcpp
