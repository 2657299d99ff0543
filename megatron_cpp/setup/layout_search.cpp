#include "megatron_cpp/setup/layout_search.h"

#include <algorithm>
#include <utility>

#include "base/number_format.h"
#include "base/program/program_files.h"
#include "megatron_cpp/config/hardware_file.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/layout_conversion.h"
#include "megatron_cpp/setup/run_summary.h"
#include "plan/layout_memory.h"
#include "plan/step/step_time.h"

namespace mcpp {
namespace {

/// Slowdown relative to the best layout above which a warning is logged.
constexpr double kSlowdownThreshold = 1.2;

/// Describes which offload tiers were searched.
std::string search_summary(const Hardware& hardware) {
  const OffloadPlacement farthest = offload_placements(hardware.host).back();
  if (farthest.params == OffloadTier::Device)
    return str(" (its host is not asked to help: host.memory_bandwidth and host.link_bandwidth of ",
               hardware.device.name, " say how fast that would be)");
  return str(", even with optimizer state, weights and activations in host memory",
             farthest.params == OffloadTier::File ? " and on disks" : "");
}

/// Suggests bf16 gradients if they would make a layout fit. The search does not use them on its own because they change
/// the training results.
std::string bf16_gradients_hint(const Hardware& hardware, Workload work, const SearchLimits& limits) {
  if (work.rounding.bf16_gradients || !work.can_round_gradients) return "";
  work.rounding.bf16_gradients = true;
  if (!any_layout_fits(hardware, work, limits)) return "";
  return "; with optimizer.main_grads_dtype = \"bf16\", which changes numbers, something would";
}

/// Returns the fastest candidate that passes all checks of the configuration, such as its batch size ramp-up and the
/// folder required for offloading to disk.
const Candidate& best_runnable(const SearchResult& found, const Config& config, int world_size) {
  const auto has_folder = [&](const Candidate& candidate) {
    return !candidate.layout.uses(OffloadTier::File) || !config.optimizer.offload_folder.empty();
  };
  const auto runs = [&](const Candidate& candidate) {
    return has_folder(candidate) && layout_problems(apply_layout(config, candidate.layout), world_size).empty();
  };
  const auto best = std::ranges::find_if(found.best, runs);
  if (best != found.best.end()) return *best;
  const Candidate& first = found.best.front();
  check_input(has_folder(first), "--plan: what fits, ", first.layout.describe(),
              ", needs a folder on a disk: set optimizer.offload = \"file\" and optimizer.offload_folder");
  fail(ExitCode::BadInput, "--plan: none of the ", found.best.size(), " fastest layouts can run on ", world_size,
       " ranks: ", join(layout_problems(apply_layout(config, first.layout), world_size), "; "));
}

}  // namespace

void fail_no_layout_fits(const SearchResult& result, const Hardware& hardware, const Workload& work,
                         const SearchLimits& limits) {
  const Candidate& smallest = result.smallest;
  const i64 world = smallest_world(hardware, work, limits);
  fail(ExitCode::BadInput, "nothing fits: of ", result.possible, " layouts of ", limits.world_size,
       " ranks the one that needs least, ", smallest.layout.describe(), ", needs ",
       human_bytes(smallest.memory.total()), " of the ", human_bytes(limits.memory_bytes), " that a rank on ",
       hardware.device.name, " has", search_summary(hardware), bf16_gradients_hint(hardware, work, limits), "; ",
       world > 0 ? str("the smallest world that would do has ", world, " ranks")
                 : str("no world that its links join would do; use devices with more memory"));
}

double max_rank_memory(const Config& config, int world_size) {
  double max_memory = 0;
  for (const MemoryEstimate& rank : estimate_memory_by_stage(config, world_size))
    max_memory = std::max(max_memory, rank.total());
  return max_memory;
}

StepTime predict_configured_step(const PredictionInput& any, const Config& config, int world_size) {
  check_layout(config, world_size);
  const PredictionInput configured{any.hardware, any.program, any.work, layout_from_config(config, world_size)};
  const std::vector<std::string> missing = missing_rates(configured.hardware, configured.layout);
  check_input(missing.empty(), "a step cannot be predicted: ", join(missing, "; "));
  return step_time(configured);
}

PlannedRun plan_run(const Config& config, const PlanRequest& request, int world_size) {
  if (request.hardware.empty()) {
    check_input(!request.plan, "--plan: needs --hardware, the kind of cluster that it plans for");
    return {.config = config, .text = {}, .warning = {}};
  }
  const Hardware hardware =
      load_hardware(request.hardware, find_installed_file(request.hardware_folder)).for_ranks(world_size);
  const KernelTraits program;
  const Workload work = make_workload(config);
  check_fp8_rate(hardware, work);
  const SearchLimits limits{.world_size = world_size, .memory_bytes = (1 - kMemoryReserve) * hardware.memory_bytes()};
  const SearchResult found = search_layouts(hardware, program, work, limits);
  if (request.plan) {
    if (found.best.empty()) fail_no_layout_fits(found, hardware, work, limits);
    const Candidate& best = best_runnable(found, config, world_size);
    Config planned = apply_layout(config, best.layout);
    const double memory = max_rank_memory(planned, world_size);
    return {.config = std::move(planned),
            .text = str("planned for ", world_size, " x ", hardware.device.name, ": ", best.layout.describe(), ", ",
                        human_step_seconds(best.time.seconds), " a step predicted, the best of ", found.fitting,
                        " layouts that fit"),
            .warning = {},
            .predicted = predict_step({hardware, program, work, best.layout}, memory)};
  }
  const double seconds = predict_configured_step({hardware, program, work, {}}, config, world_size).seconds;
  PlannedRun run{.config = config,
                 .text = str("predicted on ", world_size, " x ", hardware.device.name, ": ",
                             human_step_seconds(seconds), " a step"),
                 .warning = {},
                 .predicted = predict_step({hardware, program, work, layout_from_config(config, world_size)},
                                           max_rank_memory(config, world_size))};
  if (!found.best.empty() && seconds > kSlowdownThreshold * found.best.front().time.seconds)
    run.warning = str("another layout is predicted to be ", fixed(seconds / found.best.front().time.seconds, 1),
                      " times as fast: ", found.best.front().layout.describe(),
                      "; --plan takes it, and megatron_cpp plan --explain says why");
  return run;
}

}  // namespace mcpp
