#include "megatron_cpp/commands/plan/plan_worlds.h"

#include <algorithm>

#include "base/number_format.h"
#include "megatron_cpp/config/layout.h"
#include "plan/layouts.h"
#include "plan/report/report.h"

namespace mcpp {
namespace {

/// Default for the number of tokens.
constexpr double kDefaultTokens = 1e9;

/// Checks limits that no number of ranks could satisfy, before searching many.
void check_limits_of_model(const PredictionInput& any, SearchLimits limits) {
  limits.world_size = kAnyWorld;
  const std::vector<std::string> conflicts = limit_conflicts(any.hardware, any.work, limits);
  check_input(conflicts.empty(), "no layout can be found:\n  ", join(conflicts, "\n  "));
}

/// Checks that a batch that grows with the ranks has a whole number of samples.
void check_batches(const ScalingRequest& request, i64 samples) {
  std::vector<std::string> broken;
  for (const i64 world : request.worlds)
    if (samples * world % request.worlds.front() != 0) broken.push_back(std::to_string(world));
  check_input(broken.empty(), "--weak: ", samples, " samples for ", request.worlds.front(),
              " ranks are not a whole number for ", join(broken, " and "),
              "; change training.global_batch_size or --scale");
}

}  // namespace

void compare_world_sizes(const PlanOptions& options, const PredictionInput& any, const SearchLimits& limits,
                         const Log& log) {
  check_limits_of_model(any, limits);
  Deadline training = options.deadline;
  if (training.tokens == 0) training.tokens = kDefaultTokens;
  ScalingRequest request{
      .worlds = options.scale, .is_weak = options.weak, .tokens = training.tokens, .failures = options.failures};
  std::ranges::sort(request.worlds);
  request.worlds.erase(std::unique(request.worlds.begin(), request.worlds.end()), request.worlds.end());
  if (options.weak) check_batches(request, any.work.global_batch_size);
  const std::vector<ScalingPoint> points = scaling(any.hardware, any.program, any.work, limits, request);
  log.info(scaling_text(any, points, options.weak, training.tokens));
  check_input(std::ranges::any_of(points, &ScalingPoint::fits), "nothing fits on any of these numbers of ranks");
  const ScalingPoint* best = best_point(points, options.objective, training.hours);
  check_input(best != nullptr, "none of these numbers of ranks trains on ", human_count(training.tokens), " tokens in ",
              shortest(training.hours), " hours");
  log.info(best_point_text(*best, options.objective, training));
}

void plan_for_deadline(const PlanOptions& options, const PredictionInput& any, const SearchLimits& limits,
                       const Log& log) {
  check_limits_of_model(any, limits);
  const FewestDevices devices =
      find_fewest_devices(any.hardware, any.program, any.work, limits, options.deadline, options.failures);
  const std::string text = deadline_text(any, devices, options.deadline);
  check_input(devices.found.has_value(), text);
  log.info(text);
}

}  // namespace mcpp
