#include "megatron_cpp/setup/layout_search.h"

#include <algorithm>
#include <utility>

#include "base/number_text.h"
#include "base/program/shipped_file.h"
#include "megatron_cpp/config/hardware_file.h"
#include "megatron_cpp/config/layout.h"
#include "megatron_cpp/setup/placement.h"
#include "megatron_cpp/setup/plan.h"
#include "plan/places.h"
#include "plan/step/elsewhere.h"

namespace mcpp {
namespace {

/// Slowdown relative to the best layout above which a warning is logged.
constexpr double kMuchSlower = 1.2;

/// Describes which offload tiers were searched.
std::string what_was_tried(const Hardware& hardware) {
  const Places farthest = places(hardware.host).back();
  if (farthest.params == OffloadTier::Device)
    return str(" (its host is not asked to help: host.memory_bandwidth and host.link_bandwidth of ",
               hardware.device.name, " say how fast that would be)");
  return str(", even with optimizer state, weights and activations in host memory",
             farthest.params == OffloadTier::File ? " and on disks" : "");
}

/// Suggests bf16 gradients if they would make a layout fit. The search does not use them on its own because they change
/// the training results.
std::string what_rounding_does(const Hardware& hardware, Workload work, const SearchLimits& limits) {
  if (work.rounding.bf16_gradients || !work.may_round_gradients) return "";
  work.rounding.bf16_gradients = true;
  if (!fits_somehow(hardware, work, limits)) return "";
  return "; with optimizer.main_grads_dtype = \"bf16\", which changes numbers, something would";
}

/// Returns the fastest candidate that passes all checks of the configuration, such as its batch size ramp-up and the
/// folder required for offloading to disk.
const Candidate& best_that_runs(const SearchResult& found, const Config& config, int world_size) {
  const auto has_folder = [&](const Candidate& candidate) {
    return !candidate.layout.uses(OffloadTier::File) || !config.optimizer.offload_folder.empty();
  };
  const auto runs = [&](const Candidate& candidate) {
    return has_folder(candidate) && layout_problems(with_layout(config, candidate.layout), world_size).empty();
  };
  const auto best = std::ranges::find_if(found.best, runs);
  if (best != found.best.end()) return *best;
  const Candidate& first = found.best.front();
  check_input(has_folder(first), "--plan: what fits, ", first.layout.describe(),
              ", needs a folder on a disk: set optimizer.offload = \"file\" and optimizer.offload_folder");
  fail(ExitCode::BadInput, "--plan: none of the ", found.best.size(), " fastest layouts can run on ", world_size,
       " ranks: ", join(layout_problems(with_layout(config, first.layout), world_size), "; "));
}

}  // namespace

void fail_nothing_fits(const SearchResult& result, const Hardware& hardware, const Workload& work,
                       const SearchLimits& limits) {
  const Candidate& smallest = result.smallest;
  const i64 world = smallest_world(hardware, work, limits);
  fail(ExitCode::BadInput, "nothing fits: of ", result.possible, " layouts of ", limits.world_size,
       " ranks the one that needs least, ", smallest.layout.describe(), ", needs ",
       human_bytes(smallest.memory.total()), " of the ", human_bytes(limits.memory_bytes), " that a rank on ",
       hardware.device.name, " has", what_was_tried(hardware), what_rounding_does(hardware, work, limits), "; ",
       world > 0 ? str("the smallest world that would do has ", world, " ranks")
                 : str("no world that its links join would do; use devices with more memory"));
}

double most_memory(const Config& config, int world_size) {
  double most = 0;
  for (const MemoryEstimate& rank : estimate_memory_by_stage(config, world_size)) most = std::max(most, rank.total());
  return most;
}

StepTime configured_step(const Job& any, const Config& config, int world_size) {
  check_layout(config, world_size);
  const Job own{any.hardware, any.program, any.work, layout_of(config, world_size)};
  const std::vector<std::string> missing = missing_rates(own.hardware, own.layout);
  check_input(missing.empty(), "a step cannot be predicted: ", join(missing, "; "));
  return step_time(own);
}

PlannedRun plan_run(const Config& config, const PlanRequest& request, int world_size) {
  if (request.hardware.empty()) {
    check_input(!request.plan, "--plan: needs --hardware, the kind of cluster that it plans for");
    return {.config = config, .text = {}, .warning = {}};
  }
  const Hardware hardware = load_hardware(request.hardware, find_shipped(request.hardware_folder)).of(world_size);
  const Implementation program;
  const Workload work = workload_of(config);
  check_fp8_rate(hardware, work);
  const SearchLimits limits{.world_size = world_size, .memory_bytes = (1 - kMemoryReserve) * hardware.memory_bytes()};
  const SearchResult found = search_layouts(hardware, program, work, limits);
  if (request.plan) {
    if (found.best.empty()) fail_nothing_fits(found, hardware, work, limits);
    const Candidate& best = best_that_runs(found, config, world_size);
    Config planned = with_layout(config, best.layout);
    const double memory = most_memory(planned, world_size);
    return {.config = std::move(planned),
            .text = str("planned for ", world_size, " x ", hardware.device.name, ": ", best.layout.describe(), ", ",
                        human_step_seconds(best.time.seconds), " a step predicted, the best of ", found.fitting,
                        " layouts that fit"),
            .warning = {},
            .predicted = predicted_step({hardware, program, work, best.layout}, memory)};
  }
  const double seconds = configured_step({hardware, program, work, {}}, config, world_size).seconds;
  PlannedRun run{.config = config,
                 .text = str("predicted on ", world_size, " x ", hardware.device.name, ": ",
                             human_step_seconds(seconds), " a step"),
                 .warning = {},
                 .predicted = predicted_step({hardware, program, work, layout_of(config, world_size)},
                                             most_memory(config, world_size))};
  if (!found.best.empty() && seconds > kMuchSlower * found.best.front().time.seconds)
    run.warning = str("another layout is predicted to be ", fixed(seconds / found.best.front().time.seconds, 1),
                      " times as fast: ", found.best.front().layout.describe(),
                      "; --plan takes it, and megatron_cpp plan --explain says why");
  return run;
}

}  // namespace mcpp
