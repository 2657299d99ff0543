#include "megatron_cpp/setup/layout_search.h"

#include <algorithm>
#include <utility>

#include "base/number_format.h"
#include "base/program/program_files.h"
#include "data/dataset/blend.h"
#include "data/dataset/dataset_info.h"
#include "megatron_cpp/config/hardware_file.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/model_provider.h"
#include "megatron_cpp/setup/run_summary.h"
#include "plan/layout_memory.h"
#include "plan/step/step_time.h"

namespace mcpp {
namespace {

/// Returns the mean document length of the training datasets, according to their .json files.
double document_tokens(const DataConfig& data) {
  const bool has_own = !data.train_data_path.empty();
  const std::vector<std::string>& paths = has_own ? data.train_data_path : data.data_path;
  if (data.mock_data || paths.empty()) return 0;
  const BlendList blend = parse_blend_list(paths, has_own ? "data.train_data_path" : "data.data_path");
  return mean_document_tokens(blend.prefixes, blend.weights.normalized().mean());
}

}  // namespace

void check_low_precision_rates(const Hardware& hardware, const Workload& work) {
  const std::vector<GemmRecipe> recipes = work.recipes();
  if (recipes.empty()) return;
  const bool is_in_tables = !work.fp8.modules.empty();
  const std::string keys = is_in_tables ? "training.fp8, training.low_precision: " : "training.fp8: ";
  check_input(!hardware.measured(GemmType::Bf16), keys, "the time of low precision on ", hardware.device.name,
              " is not predicted, because CPUs emulate it; remove it to plan in bf16");
  for (const GemmRecipe recipe : recipes)
    check_input(has_blocks(recipe) || hardware.has_gemms(GemmType::Fp8), keys, hardware.device.name,
                " has no fp8 GEMMs for the recipe \"", enum_name(recipe),
                "\" (device.fp8_peak of its file is 0); use \"blockwise\" or \"mxfp8\", which are emulated in bf16, or "
                "remove it");
}

std::string low_precision_text(const Hardware& hardware, const Workload& work) {
  std::string text;
  for (const GemmRecipe recipe : work.recipes()) {
    const GemmType type = gemm_type_of(recipe);
    const char* name = enum_name(type).data();
    if (!hardware.has_gemms(type))
      text += str(enum_name(recipe), ": ", hardware.device.name, " has no such GEMMs (device.", name,
                  "_peak), so operands are rounded and multiplied in bf16\n");
    else if (!hardware.has_attained_rate(type))
      text += str(enum_name(recipe), ": not measured on ", hardware.device.name, " (device.", name,
                  "_attained); predicted at ", fixed(hardware.gemm_flops(type) / 1e12, 0), " TFLOP/s, ",
                  fixed(100 * hardware.gemm_flops(type) / hardware.peak_flops(type), 0),
                  " % of the peak, the fraction of ", type == GemmType::Fp8 ? "bf16" : "fp8", "\n");
  }
  return text;
}

Workload make_workload(const Config& config) {
  const ParallelConfig& p = config.parallel;
  Layout base{.formats = p.formats,
              .power_sgd_start_iter = p.power_sgd_start_iter,
              .bucket_size = p.bucket_size,
              .overlap_grad_reduce = p.overlap_grad_reduce,
              .overlap_param_gather = p.overlap_param_gather};
  base.formats.main_grads_dtype = config.optimizer.main_grads_dtype;
  return {.model = config.model,
          .dtype = dtype_of(config.training.precision),
          .fp8 = fp8_layers(config),
          .global_batch_size = config.batch_sizes().back().batch_size,
          .states = states_per_weight(config),
          .segment_elements = config.optimizer.offload_segment_size,
          .base = base,
          .can_round_gradients = config.optimizer.can_round_gradients(),
          .records_logits = config.optimizer.qk_clip,
          .records_passes = config.device.cuda_graph_impl != CudaGraphImpl::None,
          .ema_interval = config.optimizer.ema_decay > 0 ? config.optimizer.ema_interval : 0,
          .document_tokens = config.data.reset_attention_mask ? document_tokens(config.data) : 0};
}

namespace {

/// Slowdown relative to the best layout above which a warning is logged.
constexpr double kSlowdownThreshold = 1.2;

/// Describes which offload tiers were searched.
std::string search_summary(const Hardware& hardware) {
  const OffloadPlacement farthest = offload_placements(hardware.host).back();
  if (farthest.params == OffloadTier::Device)
    return str(" (without offloading: host.memory_bandwidth and host.link_bandwidth of ", hardware.device.name,
               " are not set)");
  return str(", even with optimizer state, weights and activations in host memory",
             farthest.params == OffloadTier::File ? " and on disks" : "");
}

/// Suggests bf16 gradients if they would make a layout fit. The search does not use them on its own because they change
/// the training results.
std::string bf16_gradients_hint(const Hardware& hardware, Workload work, const SearchLimits& limits) {
  if (work.base.formats.has_bf16_grads() || !work.can_round_gradients) return "";
  work.base.formats.main_grads_dtype = GradDType::Bf16;
  if (!any_layout_fits(hardware, work, limits)) return "";
  return "; with optimizer.main_grads_dtype = \"bf16\", which changes results, a layout fits";
}

/// Returns the preferred candidate, or else the fastest, that passes all checks of the configuration, such as its batch
/// size ramp-up and the folder required for offloading to disk.
const Candidate& best_runnable(const SearchResult& result, const Config& config, int world_size) {
  const auto has_folder = [&](const Candidate& candidate) {
    return !candidate.layout.uses(OffloadTier::File) || !config.optimizer.offload_folder.empty();
  };
  const auto runs = [&](const Candidate& candidate) {
    return has_folder(candidate) && layout_problems(apply_layout(config, candidate.layout), world_size).empty();
  };
  if (result.simpler && runs(*result.simpler)) return *result.simpler;
  const auto best = std::ranges::find_if(result.best, runs);
  if (best != result.best.end()) return *best;
  const Candidate& first = result.best.front();
  check_input(has_folder(first), "--plan: the fastest layout, ", first.layout.describe(),
              ", needs a folder on a disk; set optimizer.offload = \"file\" and optimizer.offload_folder");
  fail(ExitCode::BadInput, "--plan: none of the ", result.best.size(), " fastest layouts can run on ", world_size,
       " ranks: ", join(layout_problems(apply_layout(config, first.layout), world_size), "; "));
}

}  // namespace

void fail_no_layout_fits(const SearchResult& result, const Hardware& hardware, const Workload& work,
                         const SearchLimits& limits) {
  const Candidate& smallest = result.smallest;
  const i64 world = smallest_world_size(hardware, work, limits);
  fail(ExitCode::BadInput, "no layout fits: of ", result.possible, " layouts of ", limits.world_size,
       " ranks, the smallest, ", smallest.layout.describe(), ", needs ", human_bytes(smallest.memory.total()),
       ", but a rank on ", hardware.device.name, " has ", human_bytes(limits.memory_bytes), search_summary(hardware),
       bf16_gradients_hint(hardware, work, limits), "; ",
       world > 0 ? str("the smallest world size that fits is ", world, " ranks")
                 : str("no world size that its links support fits; use devices with more memory"));
}

double max_rank_memory(const Config& config, int world_size) {
  double max_memory = 0;
  for (const MemoryEstimate& rank : estimate_memory_by_stage(config, world_size))
    max_memory = std::max(max_memory, rank.total());
  return max_memory;
}

Config on_nodes_of(const Hardware& hardware, Config config) {
  return with_dispatch_nodes(std::move(config), hardware.links.ranks.front());
}

StepTime predict_configured_step(const PredictionInput& base, const Config& config, int world_size) {
  check_layout(config, world_size);
  const PredictionInput configured{base.hardware, base.program, base.work,
                                   layout_of(on_nodes_of(base.hardware, config), world_size)};
  const std::vector<std::string> missing = missing_rates(configured.hardware, configured.layout);
  check_input(missing.empty(), "a step cannot be predicted: ", join(missing, "; "));
  return step_time(configured);
}

std::vector<Config> configs_of(const std::vector<PlannedRun>& stages) {
  std::vector<Config> configs;
  for (const PlannedRun& stage : stages) configs.push_back(stage.config);
  return configs;
}

PlannedRun plan_run(const Config& config, const PlanRequest& request, int world_size) {
  if (request.hardware.empty()) {
    check_input(!request.plan, "--plan: needs --hardware, the cluster type to plan for");
    return {.config = config, .text = {}, .warning = {}};
  }
  const Hardware hardware =
      load_hardware(request.hardware, find_installed_file(request.hardware_folder)).for_ranks(world_size);
  const KernelTraits program;
  const Workload work = make_workload(config);
  check_low_precision_rates(hardware, work);
  const SearchLimits limits{.world_size = world_size, .memory_bytes = (1 - kMemoryReserve) * hardware.memory_bytes()};
  const SearchResult result = search_layouts(hardware, program, work, limits);
  if (request.plan) {
    if (result.best.empty()) fail_no_layout_fits(result, hardware, work, limits);
    const Candidate& best = best_runnable(result, config, world_size);
    Config planned = apply_layout(config, best.layout);
    const double memory = max_rank_memory(planned, world_size);
    return {.config = std::move(planned),
            .text = str("planned for ", world_size, " x ", hardware.device.name, ": ", best.layout.describe(), ", ",
                        human_step_seconds(best.time.seconds), " a step predicted, the ",
                        result.simpler ? "simplest of those within 2 % of the best" : "best", " of ", result.fitting,
                        " layouts that fit"),
            .warning = {},
            .node_ranks = hardware.links.ranks.front(),
            .predicted = predict_step({hardware, program, work, best.layout}, memory)};
  }
  const double seconds = predict_configured_step({hardware, program, work, {}}, config, world_size).seconds;
  const Config on_nodes = on_nodes_of(hardware, config);
  PlannedRun run{.config = config,
                 .text = str("predicted on ", world_size, " x ", hardware.device.name, ": ",
                             human_step_seconds(seconds), " a step"),
                 .warning = {},
                 .node_ranks = hardware.links.ranks.front(),
                 .predicted = predict_step({hardware, program, work, layout_of(on_nodes, world_size)},
                                           max_rank_memory(on_nodes, world_size))};
  if (!result.best.empty() && seconds > kSlowdownThreshold * result.best.front().time.seconds)
    run.warning = str("a different layout is predicted to be ", fixed(seconds / result.best.front().time.seconds, 1),
                      " times as fast: ", result.best.front().layout.describe(),
                      "; --plan selects it, and megatron_cpp plan --explain explains why");
  return run;
}

}  // namespace mcpp
